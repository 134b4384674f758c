"""What a worker's memory settings promise."""

import gc
from collections.abc import Iterator

import pytest

from gateway.base import memory


@pytest.fixture
def settled() -> Iterator[None]:
    before = gc.get_threshold()
    memory.settle()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class Knot:
    """It knows itself, so that only the collector frees it."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Knot.alive += 1

    def __del__(self) -> None:
        Knot.alive -= 1


@pytest.mark.usefixtures("settled")
def test_what_waits_for_the_collector_is_bounded() -> None:
    most = 0
    for _ in range(50_000):
        Knot()
        most = max(most, Knot.alive)
    assert 0 < most <= 5_001


@pytest.mark.usefixtures("settled")
def test_what_is_alive_when_the_worker_is_ready_is_not_looked_at_again() -> None:
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 2_000
