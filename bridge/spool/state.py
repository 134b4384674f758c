"""The open files of the spool's thread, and a few numbers per partition and segment."""

from dataclasses import dataclass, field

from bridge.spool.files import Files, Topics
from bridge.spool.index import Index
from bridge.spool.record import ID_BITS
from bridge.spool.segments import Segments
from bridge.spool.tally import Slot, Tally


@dataclass(slots=True)
class PartitionState:
    """A partition that has had batches. Ids are ``base`` plus a sequence number that only rises."""

    number: int
    topic: str
    partition: int
    last: int = 0  # sequence number of the newest batch
    removed: int = 0  # every batch up to it is removed
    batches: int = 0
    messages: int = 0
    bytes: int = 0
    oldest_ms: int = 0  # of the first batch, 0 without one

    @property
    def base(self) -> int:
        return self.number << ID_BITS

    @property
    def slot(self) -> Slot:
        return Slot(self.number, self.removed, self.last, self.batches, self.messages)


@dataclass(slots=True)
class State:
    """Everything open. Owned by the spool's thread."""

    files: Files
    instance: str
    log: Segments
    topics: Topics
    tally: Tally
    index: Index
    partitions: dict[tuple[str, int], PartitionState] = field(default_factory=dict)
    live: dict[int, list[int]] = field(default_factory=dict)  # segment: batches and bytes still needed
    sizes: dict[int, int] = field(default_factory=dict)  # of the segments' files, but for a few bytes
    needed: int = 0  # bytes, of all segments
    written: int = 0  # the same, needed or not
    damaged: set[int] = field(default_factory=set)  # segments to keep for analysis
    highest: int = 0  # partition number

    def partition(self, topic: str, partition: int) -> PartitionState:
        """The partition's numbers; made at first use."""
        state = self.partitions.get((topic, partition))
        if state is None:
            self.highest += 1
            state = self.partitions[topic, partition] = PartitionState(self.highest, topic, partition)
        return state

    def count(self, segment: int, batches: int, size: int) -> None:
        """Add batches and bytes to a segment's numbers; negative ones were removed."""
        counts = self.live.setdefault(segment, [0, 0])
        counts[0] += batches
        counts[1] += size
        self.needed += size
        if size > 0:
            self.sizes[segment] = self.sizes.get(segment, 0) + size
            self.written += size

    def forget(self, segment: int) -> None:
        """Drop the numbers of a removed segment."""
        self.live.pop(segment, None)
        self.written -= self.sizes.pop(segment, 0)
