"""What holds for every test: it leaves no connection open, and has its place among the processes."""

from __future__ import annotations

from tests.order import pytest_collection_modifyitems, pytest_xdist_auto_num_workers  # noqa: F401 - hooks, too
from tests.unclosed import pytest_runtest_teardown  # noqa: F401 - pytest takes hooks from a conftest's names
