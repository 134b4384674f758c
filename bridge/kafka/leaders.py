"""The leader of each partition by the latest leader epoch that a broker has reported (KIP-320).

A broker that was frozen, or is cut off from its controller, answers with old metadata that still name it as a leader.
Without epochs these would replace newer metadata: batches would go to this broker and wait, and requests to the right
leader would be abandoned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest, MetadataRequest_v5, MetadataResponse_v5
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

if TYPE_CHECKING:
    Row = tuple[int, int, int, list[int], list[int]]  # error, partition, leader, replicas, in sync

STALE_S: Final = 5.0
_EPOCHS_SINCE: Final = 7
_UNKNOWN_TOPIC: Final = 3


class _Answer(Response):  # type: ignore[misc]
    """Metadata, version 7: as version 5, and the leader's epoch beside its number."""

    API_KEY = 3
    API_VERSION = _EPOCHS_SINCE
    SCHEMA = Schema(
        *zip(MetadataResponse_v5.SCHEMA.names[:-1], MetadataResponse_v5.SCHEMA.fields[:-1], strict=True),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
            ),
        ),
    )


class _Question(RequestStruct):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = _EPOCHS_SINCE
    RESPONSE_TYPE = _Answer
    SCHEMA = MetadataRequest_v5.SCHEMA


class Metadata(MetadataRequest):  # type: ignore[misc]
    """A question for metadata up to version 7, of which aiokafka has 5. Its answer is for ``Leaders.latest``."""


Metadata._CLASSES = (*MetadataRequest._CLASSES, _Question)


class Leaders:
    """The latest known leader of each partition. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[int, Row]] = {}
        self._stale_since_s: dict[tuple[str, int], float] = {}

    def latest(self, answer: Any, now_s: float) -> None:
        """Replace older epochs in an answer by the known ones, and bring its topics into aiokafka's form, in place.

        An older epoch is accepted when no broker has reported the later one for STALE_S, or when the topic was absent
        meanwhile: it was created again."""
        if answer.API_VERSION < _EPOCHS_SINCE:
            return
        topics = []
        for error, topic, internal, partitions in answer.topics:
            if error == _UNKNOWN_TOPIC:
                for place in [place for place in self._known if place[0] == topic]:
                    del self._known[place]
            topics.append((error, topic, internal, [self._latest(topic, row, now_s) for row in partitions]))
        answer.topics = topics

    def _latest(self, topic: str, told: Any, now_s: float) -> Row:
        """The row of a partition to use, in aiokafka's form: ``told``, of an answer, or the known one of a later
        epoch."""
        error, number, leader, epoch, replicas, in_sync, *_ = told
        row: Row = (error, number, leader, replicas, in_sync)
        place = (topic, number)
        known_epoch, known = self._known.get(place, (-1, row))
        if epoch < known_epoch and now_s - self._stale_since_s.setdefault(place, now_s) < STALE_S:
            return known
        self._known[place] = (epoch, row)
        self._stale_since_s.pop(place, None)
        return row
