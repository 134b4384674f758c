"""What holds for every test: it leaves no connection open, and has its place among the processes."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.order import (  # noqa: F401 - hooks, too
    pytest_collection_modifyitems,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)
from tests.unclosed import pytest_runtest_teardown  # noqa: F401 - pytest takes hooks from a conftest's names

# How fast examples are drawn is a matter of what else the machine does.
settings.register_profile("suite", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
