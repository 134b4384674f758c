"""Which tests run side by side, and in which order: a few processes share the files out among themselves.

Many of these tests wait, for a broker that starts or for a time that must pass, so a process for each processor pays.
(With one more, on two of them, chaos tests beside Spark came too late.) A file's tests stay
together, as its fixtures are made once; so do all of the lake's, which share one Spark and begin first, as they take
longest. The chaos tests come last, in two halves, when nothing else is left: they send thousands of messages a second
through everything, or look at it by the second, and have to have the machine.
"""

from __future__ import annotations

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_auto_num_workers", "pytest_xdist_make_scheduler"]

import os
import re
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent
# Files of the same place keep their order.
ORDER = ("lake", "integration/test_image.py", "integration/(?!test_demo.py)", "unit", "")
TOGETHER = {
    "tests/lake/": "lake",
    "tests/(integration/test_demo.py|chaos/test_chaos_[a-k])": "chaos, first half",
    "tests/chaos/": "chaos, the rest",
}


class _ByFile(LoadFileScheduling):  # type: ignore[misc] (it has no types)
    def _split_scope(self, nodeid: str) -> str:
        group = next((name for begin, name in TOGETHER.items() if re.match(begin, nodeid)), None)
        return group or str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)  # without it (-p no:xdist) all run in this process
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _ByFile(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """As many processes as processors, four at the most: each starts brokers of its own."""
    return min(os.cpu_count() or 1, 4)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(TESTS).as_posix()
        return next(rank for rank, begin in enumerate(ORDER) if re.match(begin, path))

    items.sort(key=place)
