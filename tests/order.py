"""Which tests run side by side, and in which order: a few processes share the files out among themselves.

Many of these tests wait, for a broker that starts or for a time that must pass, so there is one process more than
processors. A file's tests stay together, as its fixtures are made once; so do all that share one Spark, which begin
first, as they take longest. The busy ones come last, two files side by side and no more: they send thousands of
messages a second through everything, or look at it by the second. Beside them run only those that mostly wait.
"""

import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

TESTS = Path(__file__).parent
SPARK = r"tests/(lake/|integration/test_streaming_process\.py|unit/test_ledger_doc\.py)"
BUSY_CHAOS = "chaos/test_chaos_(gateway|lives|operate|reload|soak|workers)"
BUSY = rf"(tests/)?({BUSY_CHAOS}|integration/test_demo)\.py"
BUSY_AT_ONCE = 2
# About 0.4 of a processor each or less while they run.
WAITING = (
    r"(tests/)?(chaos/test_chaos_(slow_kafka|spool)|integration/test_(auth_backends|canary|command_cli|commands|dlq"
    r"|doctor_at_kafka|embedded_dev|kafka_adapter|kafka_group|mqtt_backpressure|mqtt_session|outward_embedded"
    r"|outward_kafka|page|tail_compare))\.py"
)
LAST = f"{BUSY}|{WAITING}"
# Files of the same place keep their order. Of what comes last, the longest begin.
ORDER = (
    "lake",
    "integration/test_image.py",
    f"(?!{LAST})chaos",
    f"(?!{LAST})integration",
    "unit",
    "integration/test_demo.py",
    "chaos/test_chaos_(operate|workers)",
    BUSY,
    r"chaos/test_chaos_(slow_kafka|spool)|integration/test_(commands|embedded_dev|outward_kafka|page|tail_compare)\.py",
    "",
)


class _ByFile(LoadFileScheduling):  # type: ignore[misc] (it has no types)
    def _split_scope(self, nodeid: str) -> str:
        return "Spark" if re.match(SPARK, nodeid) else str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node not in [it for it in self.nodes if not it.shutting_down][:BUSY_AT_ONCE]:
            scope = next((it for it in self.workqueue if not re.match(BUSY, it)), None)
            if scope is None:
                node.shutdown()  # it ends what it has
                return
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)  # without it (-p no:xdist) all run in this process
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _ByFile(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than processors, four at the most: each starts brokers of its own."""
    return min((os.cpu_count() or 1) + 1, 4)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    @functools.cache
    def place(file: Path) -> int:
        path = file.relative_to(TESTS).as_posix()
        return next(rank for rank, begin in enumerate(ORDER) if re.match(begin, path))

    items.sort(key=lambda item: place(item.path))
