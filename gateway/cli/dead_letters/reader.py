"""Reads dead-letter topics for ``gateway dlq``: all records, or single places."""

from collections.abc import Iterable

from bridge.dead_letters.reading import Assembler, DeadLetter, Place
from bridge.kafka.reader import Partition, TopicReader


class DeadLetterReader(TopicReader):
    """``TopicReader`` on dead-letter topics."""

    def missing(self, name: str) -> str:
        return (
            f"Kafka has no topic {name}, so there are no dead letters in it. Check dead_letter.topic and "
            "routes[].dead_letter_topic, and that --config is the gateway's own."
        )

    async def fetch(self, letters: Iterable[DeadLetter]) -> dict[Place, DeadLetter]:
        """These dead letters with their payloads, by place, without those that have expired meanwhile."""
        starts: dict[Partition, int] = {}
        ends: dict[Partition, int] = {}
        wanted = set()
        for letter in letters:
            for topic, partition, offset in letter.places:
                at = (topic, partition)
                starts[at] = min(starts.get(at, offset), offset)
                ends[at] = max(ends.get(at, 0), offset + 1)
                wanted.add((topic, partition, offset))
        assembler = Assembler()
        found = {}
        async for record in self.read(starts, ends):
            whole = assembler.take(record) if tuple(record.place) in wanted else None
            if whole is not None:
                found[whole.place] = whole
        return found
