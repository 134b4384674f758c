"""Consumer groups: members, committed offsets, and the ends of their partitions' logs."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from bridge.backoff import broker_timeout_ms
from gateway.admin.errors import AdminMissingError, AdminUnsupportedError
from gateway.admin.model import Answers, Group, GroupListing, Offsets, TopicPartition, by_topic
from gateway.admin.protocol import ConsumerGroupDescribeRequest, admin_api, consumer_api, metadata_api
from gateway.admin.reading import check, described_member, listed_member, sentence

if TYPE_CHECKING:
    from gateway.admin.links import Links
    from gateway.admin.model import Topic

OFFSETS_TOPIC: Final = "__consumer_offsets"
_OFFSETS_PARTITIONS: Final = 50  # default of offsets.topic.num.partitions, if the real number is hidden
_END, _START = -1, -2  # timestamps of ListOffsets that mean the log's end and its start
_BATCH_HEADER = struct.Struct(">qiiBIhiqq")  # from base offset to first and largest timestamp
_MAGIC: Final = 2
_OTHER_TOOLS: Final = {"share": "kafka-share-groups.sh", "streams": "kafka-streams-groups.sh"}
_ID_NOT_FOUND: Final = 69
_UNKNOWN_TOPIC: Final = 3


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, in 32 bits with a sign."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def offsets_partition(group: str, partitions: int) -> int:
    """The partition of ``__consumer_offsets`` for a group, as Kafka computes it: ``Utils.abs`` of the hash (0 for the
    smallest number) modulo the topic's partitions."""
    value = java_hash(group)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


class GroupReading:
    """The questions of ``KafkaAdmin`` about groups."""

    _links: Links
    timeout_s: float

    def topics(self, names: Iterable[str] | None = None) -> tuple[Topic, ...]:
        raise NotImplementedError

    def groups(self) -> Answers[tuple[GroupListing, ...]]:
        """All groups by their coordinator. Asks all brokers."""
        return self._links.ask_each(self._groups_at)

    def _groups_at(self, broker: int) -> tuple[GroupListing, ...]:
        """The groups that this broker coordinates."""
        answer = self._links.ask(broker, admin_api.ListGroupsRequest(states_filter=[], types_filter=[]))
        check(answer.error_code, f"Broker {broker} does not list its groups")
        return tuple(
            GroupListing(
                one.group_id, (one.group_type or "").lower(), one.group_state or "", one.protocol_type or "", broker
            )
            for one in answer.groups
        )

    def coordinator(self, group: str) -> int:
        """The coordinator of a group. Raises AdminRetriableError while there is none, and AdminMissingError if Kafka
        has no ``__consumer_offsets`` yet, which the request would create."""
        self.offsets_partitions()
        answer = self._links.ask_any(
            lambda: metadata_api.FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group]), max_version=6
        )
        found = answer.coordinators[0] if answer.coordinators else answer
        check(found.error_code, f"Group {group!r} has no coordinator now", found.error_message)
        return int(found.node_id)

    def offsets_partitions(self) -> int:
        """Partitions of ``__consumer_offsets``, or Kafka's default without the right to see it. Raises
        AdminMissingError if the topic does not exist: then there are no groups."""
        asked = [metadata_api.MetadataRequest.MetadataRequestTopic(name=OFFSETS_TOPIC)]
        topic = self._links.ask_any(
            lambda: metadata_api.MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        ).topics[0]
        if topic.error_code == _UNKNOWN_TOPIC:
            raise AdminMissingError("No consumer group has ever committed an offset in this Kafka.")
        return len(topic.partitions) or _OFFSETS_PARTITIONS

    def offsets_partition(self, group: str) -> int:
        """The partition of ``__consumer_offsets`` for a group, which need not exist. Its leader is the coordinator."""
        return offsets_partition(group, self.offsets_partitions())

    def group(self, name: str) -> Group:
        """A group with its members. Raises AdminMissingError for an unknown group, and AdminError for a kind that only
        Kafka's own tools describe (share, streams)."""
        coordinator = self.coordinator(name)
        partitions = self.offsets_partitions()
        place = {"coordinator": coordinator, "offsets_partition": offsets_partition(name, partitions),
                 "offsets_partitions": partitions}  # fmt: skip
        try:
            answer = self._links.ask(coordinator, ConsumerGroupDescribeRequest(group_ids=[name]))
        except AdminUnsupportedError:  # before 4.0
            return self._classic_group(name, place)
        found = answer.groups[0]
        if found.error_code == _ID_NOT_FOUND:  # a classic group, or none
            return self._classic_group(name, place)
        check(found.error_code, f"Group {name!r} cannot be described", found.error_message)
        return Group(
            id=name, type="consumer", state=found.group_state, protocol=found.assignor_name,
            members=tuple(described_member(one) for one in found.members), epoch=found.group_epoch, **place,
        )  # fmt: skip

    def _classic_group(self, name: str, place: dict[str, int]) -> Group:
        """A group of the protocol before KIP-848. Raises AdminMissingError for an unknown one."""
        answer = self._links.ask(place["coordinator"], admin_api.DescribeGroupsRequest(groups=[name]))
        found = answer.groups[0]
        unknown = found.error_code == _ID_NOT_FOUND  # older versions answer Dead for any name
        if unknown or (found.group_state == "Dead" and not found.members and not self.committed(name).values):
            self._check_kind(name, place["coordinator"])
            raise AdminMissingError(
                f"Kafka knows no group {name!r}: no offset was committed in it, or all have expired "
                "(offsets.retention.minutes). gateway groups list shows the existing ones."
            )
        check(found.error_code, f"Group {name!r} cannot be described", found.error_message)
        return Group(
            id=name, type="classic", state=found.group_state, protocol=found.protocol_data,
            members=tuple(listed_member(one) for one in found.members), **place,
        )  # fmt: skip

    def _check_kind(self, name: str, coordinator: int) -> None:
        """Raise AdminUnsupportedError for a kind of group without committed offsets."""
        for one in self._groups_at(coordinator):
            if one.id == name and one.type in _OTHER_TOOLS:
                raise AdminUnsupportedError(
                    f"Group {name!r} is a {one.type} group ({one.state}): {_OTHER_TOOLS[one.type]} describes it."
                )

    # --- offsets ---

    def committed(self, group: str) -> Offsets:
        """The committed offsets of a group, with a problem for each that cannot be read."""
        coordinator = self.coordinator(group)
        asked = consumer_api.OffsetFetchRequest.OffsetFetchRequestGroup
        request = consumer_api.OffsetFetchRequest(
            group_id=group, topics=None, groups=[asked(group_id=group, topics=None)], require_stable=False
        )
        answer = self._links.ask(coordinator, request, max_version=9)  # version 10 names topics by id
        found = answer.groups[0] if answer.groups else answer
        check(found.error_code, f"The offsets of group {group!r} cannot be read")
        told = Offsets()
        for topic in found.topics:
            for one in topic.partitions:
                place = TopicPartition(topic.name, one.partition_index)
                if one.error_code != 0:
                    told.problems[place] = sentence(one.error_code, f"The offset of {place} cannot be read")
                elif one.committed_offset >= 0:
                    told.values[place] = one.committed_offset
        return told

    def log_ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The high watermark of each partition (the offset of its next record), from the leaders."""
        return self._offsets_at(partitions, _END)

    def log_starts(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._offsets_at(partitions, _START)

    def _offsets_at(self, partitions: Iterable[TopicPartition], at: int) -> Offsets:  # ``at``: _START or _END
        wanted = sorted(set(partitions))
        told = Offsets()
        leaders = self._by_leader(wanted, told)

        def ask(number: int) -> Any:
            return self._links.ask(number, _list_offsets(leaders[number], at, broker_timeout_ms(self.timeout_s)))

        answers = self._links.ask_each(ask, leaders)
        for answer in answers.by_broker.values():
            for topic in answer.topics:
                for one in topic.partitions:
                    place = TopicPartition(topic.name, one.partition_index)
                    if one.error_code != 0:
                        told.problems[place] = sentence(one.error_code, f"The log of {place} cannot be read")
                    else:
                        told.values[place] = one.offset
        for silent in answers.unanswered:
            for place in leaders.get(silent.id if silent.id is not None else -1, ()):
                told.problems[place] = f"its leader, {silent.name}, did not answer"
        return Offsets(told.values, told.problems, answers.unanswered)

    def record_times(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The time of the record at each offset: the first timestamp of its batch, in milliseconds since 1970.

        Partitions without such a record, or without the right to read it, are left out. Reads a batch of each
        partition, so it suits a few hundred partitions, not thousands."""
        leaders = self._by_leader(sorted(offsets), Offsets())  # the problems are not used

        def ask(number: int) -> dict[TopicPartition, int]:
            """The times of records in partitions that this broker leads."""
            times = {}
            for place in leaders[number]:
                at = _first_time(self._links.ask(number, _fetch(place, offsets[place]), max_version=12))
                if at is not None:
                    times[place] = at
            return times

        answers = self._links.ask_each(ask, leaders)
        return {place: at for times in answers.by_broker.values() for place, at in times.items()}

    def _by_leader(self, partitions: list[TopicPartition], told: Offsets) -> dict[int, list[TopicPartition]]:
        """Partitions by their leader. Partitions without one become problems in ``told``."""
        known = {
            TopicPartition(topic.name, one.number): one.leader
            for topic in self.topics({place.topic for place in partitions})
            for one in topic.partitions
        }
        leaders: dict[int, list[TopicPartition]] = {}
        for place in partitions:
            leader = known.get(place)
            if place not in known:
                told.problems[place] = "the topic or partition is gone, or may not be seen"
            elif leader is None:
                told.problems[place] = "nobody leads it now"
            elif leader not in self._links.brokers:
                told.problems[place] = f"its leader, broker {leader}, is not registered"
            else:
                leaders.setdefault(leader, []).append(place)
        return leaders


def _list_offsets(partitions: list[TopicPartition], at: int, timeout_ms: int) -> Any:
    """A request for the start or the end of these logs, as ``at`` says (_START, _END)."""
    asked = consumer_api.ListOffsetsRequest.ListOffsetsTopic
    return consumer_api.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=[
            asked(
                name=topic,
                partitions=[asked.ListOffsetsPartition(partition_index=one, timestamp=at, max_num_offsets=1)
                            for one in numbers],
            )
            for topic, numbers in by_topic(partitions).items()
        ],
        timeout_ms=timeout_ms,
    )  # fmt: skip


def _fetch(place: TopicPartition, offset: int) -> Any:
    """A request for the batch with an offset: with a limit of one byte Kafka returns exactly one whole batch."""
    asked = consumer_api.FetchRequest.FetchTopic
    return consumer_api.FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            asked(
                topic=place.topic,
                partitions=[
                    asked.FetchPartition(partition=place.partition, fetch_offset=offset, partition_max_bytes=1)
                ],
            )
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def _first_time(answer: Any) -> int | None:
    """The first timestamp of a fetched batch, from its header, which is not compressed; None without a batch."""
    for topic in answer.responses:
        for one in topic.partitions:
            data = bytes(one.records or b"")
            if one.error_code == 0 and len(data) >= _BATCH_HEADER.size and data[16] == _MAGIC:
                return int(_BATCH_HEADER.unpack_from(data)[7])
    return None
