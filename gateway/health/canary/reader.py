"""Reads the end of one Kafka topic: all partitions, without a consumer group or committed offsets."""

from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from bridge.errors import BridgeError, UnreachableError
from bridge.kafka.connection import connection_options, make_consumer, read_failure, stop_consumer, why_unreachable
from bridge.kafka.login import KafkaLogin
from config.errors import GatewayError
from config.settings import KafkaSettings

_METADATA_AGE_MS: Final = 10_000  # the former leader's refusal shows a new leader earlier


class EndReader:
    """Reads from the topic's end at the first ``start``, or from its beginning if the topic did not exist then. A later
    ``start`` continues where the last reading ended. Belongs to one event loop."""

    def __init__(self, settings: KafkaSettings, client_id: str, login: KafkaLogin, topic: str) -> None:
        self._options = connection_options(settings, client_id) | {"metadata_max_age_ms": _METADATA_AGE_MS}
        # A broker may delay an empty answer for this time, which must stay below the time of one that hangs.
        self._wait_ms = int(min(settings.request_timeout.total_seconds() * 500, 2000))
        self._login = login
        self.topic = topic
        self._consumer: Any = None
        self._positions: dict[TopicPartition, int] = {}
        self._was_absent = False  # the topic did not exist at an earlier start

    async def start(self) -> bool:
        """Connect and find the place to read from. Returns whether that is the topic's end, so that earlier records are
        not read. Raises UnreachableError or RefusedError. ``stop`` closes the connections in any case."""
        self._consumer = make_consumer(
            self._options, self._login, auto_offset_reset="latest", fetch_max_wait_ms=self._wait_ms
        )
        try:
            await self._consumer.start()
            return await self._assign()
        except (kafka_errors.KafkaConnectionError, OSError) as error:
            raise await why_unreachable(self._options, self._login) from error
        except kafka_errors.KafkaError as error:
            raise self._failure(error) from error

    async def _assign(self) -> bool:
        """Seek each partition: at the first start to its end, else to where reading stopped, or to the beginning of a
        new one. Returns whether it is the first start."""
        consumer = self._consumer
        # A question for a missing topic would create it on brokers that do so; the list of all topics does not.
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
            self._positions[place] = min(known, ends[place])  # a recreated topic is shorter
            consumer.seek(place, self._positions[place])
        return first

    async def read(self, patience_s: float) -> list[Any]:
        """New records (aiokafka's), after ``patience_s`` at most. Raises UnreachableError or RefusedError; ``stop`` and
        ``start`` must follow."""
        try:
            found = await self._consumer.getmany(timeout_ms=int(patience_s * 1000))
        except (kafka_errors.KafkaError, OSError) as error:
            raise self._failure(error) from error
        for place, records in found.items():
            self._positions[place] = records[-1].offset + 1
        return [record for records in found.values() for record in records]

    async def stop(self) -> None:
        """Close the connections, within two seconds."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop_consumer(consumer)

    def _failure(self, error: BaseException) -> BridgeError:
        if isinstance(error.__cause__, GatewayError):
            return UnreachableError(str(error.__cause__))
        return read_failure(error, f"topic {self.topic}")
