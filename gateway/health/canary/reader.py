"""Reads the end of one Kafka topic: all its partitions, in no consumer group, leaving no offsets behind."""

from __future__ import annotations

__all__ = ["EndReader"]

from typing import TYPE_CHECKING, Any, Final

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from bridge.errors import RefusedError, UnreachableError
from bridge.kafka.connection import REFUSED, connection_options, make_consumer, stop_consumer, why_unreachable
from config.error_words import words
from config.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridge.errors import BridgeError
    from bridge.kafka.login import KafkaLogin
    from config.settings import KafkaSettings

_METADATA_AGE_MS: Final = 10_000  # a leader that moved is noticed by the refusal of the old one


class EndReader:
    """From the topic's end at the first ``start`` on, or from its beginning when there was no such topic then; a later
    ``start`` goes on where the last reading ended, so that nothing is passed over. Belongs to one event loop."""

    def __init__(self, settings: KafkaSettings, client_id: str, login: KafkaLogin, topic: str) -> None:
        self._options = connection_options(settings, client_id) | {"metadata_max_age_ms": _METADATA_AGE_MS}
        # A broker may hold an empty answer back for so long; it must not look like one that hangs.
        self._wait_ms = int(min(settings.request_timeout.total_seconds() * 500, 2000))
        self._login = login
        self.topic = topic
        self._consumer: Any = None
        self._positions: dict[TopicPartition, int] = {}
        self._was_absent = False

    async def start(self) -> bool:
        """Connect and find the place to read from; whether that is the very end, so that what was written before now is
        passed over. Raises UnreachableError or RefusedError; then and later ``stop`` lets go."""
        self._consumer = make_consumer(
            self._options,
            self._login,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            fetch_max_wait_ms=self._wait_ms,
        )
        try:
            await self._consumer.start()
            return await self._assign()
        except (kafka_errors.KafkaConnectionError, OSError) as error:
            raise await why_unreachable(self._options, self._login) from error
        except kafka_errors.KafkaError as error:
            raise self._failure(error) from error

    async def _assign(self) -> bool:
        consumer = self._consumer
        # Asking for a topic that is not there yet would create it where brokers do that: it is looked for in the list.
        cluster = await consumer._client.fetch_all_metadata()  # noqa: SLF001 - its public form leaves out partitions
        numbers = cluster.partitions_for_topic(self.topic)
        if not numbers:
            self._was_absent = True
            raise UnreachableError(f"Kafka has no topic {self.topic} yet.")
        places = [TopicPartition(self.topic, number) for number in sorted(numbers)]
        consumer.assign(places)
        first = not (self._positions or self._was_absent)
        ends = await consumer.end_offsets(places)
        for place in places:
            known = self._positions.get(place, ends[place] if first else 0)
            self._positions[place] = min(known, ends[place])  # a topic that was made anew is shorter
            consumer.seek(place, self._positions[place])
        return first

    async def read(self, patience_s: float) -> list[Any]:
        """Records that have come (aiokafka's), waiting ``patience_s`` for the first. Raises UnreachableError or
        RefusedError: then it is to be started anew."""
        try:
            found = await self._consumer.getmany(timeout_ms=int(patience_s * 1000))
        except (kafka_errors.KafkaError, OSError) as error:
            raise self._failure(error) from error
        for place, records in found.items():
            self._positions[place] = records[-1].offset + 1
        return list(_all(found))

    async def stop(self) -> None:
        """Let go of connections, within two seconds."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop_consumer(consumer)

    def _failure(self, error: BaseException) -> BridgeError:
        if isinstance(error.__cause__, GatewayError):
            return UnreachableError(str(error.__cause__))
        if isinstance(error, REFUSED):
            return RefusedError(
                f"Kafka does not let us read topic {self.topic}: {words(error)}. Check kafka.sasl and the ACLs: "
                "Describe and Read on it."
            )
        return UnreachableError(f"Kafka did not answer about topic {self.topic}: {words(error)}.")


def _all(found: dict[Any, list[Any]]) -> Iterator[Any]:
    for records in found.values():
        yield from records
