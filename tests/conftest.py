"""What holds for every test: it leaves no connection open, and has its place among the processes."""

import gc
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, register_random, settings

from bridge import backoff
from tests.command_line import cli  # noqa: F401 - the fixture
from tests.order import (  # noqa: F401 - hooks, too
    pytest_collection_modifyitems,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)
from tests.spark import spark  # noqa: F401 - the fixture
from tests.unclosed import pytest_runtest_teardown  # noqa: F401 - pytest takes hooks from a conftest's names

# How fast examples are drawn, and how long one takes, is a matter of what else the machine does.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
register_random(backoff._random)  # an example that failed fails again

# Where nothing has configured logging, structlog draws each traceback in colours with all local variables: a third of a
# second for each defect that a test provokes.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback

# Under nohup, in a background job and in some CI the signal is ignored, which is inherited by what tests start and then
# interrupt. One that is caught has its default again in a program that is started. For the tests nothing changes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda _number, _frame: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests are half a million objects, which stay: the collector neither looks at them while they are
    made, nor again while they run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs in a folder of its own, without the gateway.toml of the place where the tests were started."""
    monkeypatch.chdir(tmp_path)
