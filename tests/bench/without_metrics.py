"""`python -m tests.bench.without_metrics run --config FILE`: the gateway with nothing counted but its account.

What a message costs with and without metrics is measured between this and `gateway run`. Off is whatever the data path
does for /metrics, /status and health alone: counters and histograms of each batch, who answered when, the look once a
second, the event loop's probe. The ledger stays: it is how the benchmark knows that no message is missing.
"""

import sys

from bridge.kafka.contacts import Contacts
from bridge.produce.batch import Batch
from gateway.base.instruments import EventLoopProbe
from gateway.base.vitals import Vitals
from gateway.cli.main import main
from gateway.components.send_counts import SendCounts


def _stored(self: SendCounts, batch: Batch, partition: int, offset: int, _now_ns: int) -> None:
    self.intervals.stored(batch, partition, offset)


def _nothing(*_arguments: object, **_options: object) -> None:
    """Instead of what counts."""


async def _not_started(_self: object) -> None:
    """Instead of a component that looks."""


def switch_off() -> None:
    """For this process, before a worker is made."""
    SendCounts.batch_stored = _stored  # type: ignore[method-assign, assignment]
    Contacts.asked = _nothing  # type: ignore[method-assign]
    Contacts.answered = _nothing  # type: ignore[method-assign]
    EventLoopProbe.start = _not_started  # type: ignore[method-assign, assignment]
    Vitals.start = _not_started  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    switch_off()
    sys.exit(main())
