"""What holds for every test: it leaves no connection open."""

from __future__ import annotations

from tests.unclosed import pytest_runtest_teardown  # noqa: F401 - pytest takes hooks from a conftest's names
