"""``KafkaAdmin``: a connection to a whole cluster for questions and changes.

Only this package uses kafka-python's messages. Its admin client is not used (see ``gateway.admin.link``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bridge.backoff import broker_timeout_ms
from gateway.admin.changes import Changes
from gateway.admin.errors import AdminError, AdminRefusedError, AdminUnsupportedError
from gateway.admin.groups import GroupReading
from gateway.admin.link import greeting
from gateway.admin.links import Links
from gateway.admin.login import AdminLogin
from gateway.admin.model import (
    Answers,
    Broker,
    BrokerVersion,
    Cluster,
    ConfigEntry,
    LogDir,
    Quorum,
    Reassignment,
    Topic,
)
from gateway.admin.protocol import admin_api, infer_broker_version_from_api_versions, kafka_errors, metadata_api
from gateway.admin.reading import check, clock_ahead, config_entry, log_dir, quorum_replica, topic_of

if TYPE_CHECKING:
    from typing import Literal, Self

    from config.settings import Settings

_RESOURCE: Final = {"topic": 2, "broker": 4}
_METADATA_TOPIC: Final = "__cluster_metadata"
_PAGE: Final = 2000  # partitions in one answer


class KafkaAdmin(GroupReading, Changes):
    """A connection to a whole cluster for administration; a context manager.

    The login is that of ``admin.security`` and its tables if set, else of ``kafka.*``. Every method blocks, for at most
    ``admin.timeout`` (or ``timeout_s``) per request, also with a frozen broker, which does not delay the others'
    answers. Any thread may use it. Errors are sentences: AdminError and its branches (``gateway.admin.errors``),
    ConfigError for TLS files, CredentialError for tokens.
    """

    def __init__(self, settings: Settings, *, timeout_s: float | None = None) -> None:
        self.timeout_s = settings.admin.timeout.total_seconds() if timeout_s is None else timeout_s
        login = AdminLogin(settings)
        client_id = f"{settings.instance}-admin"
        addresses = settings.admin.bootstrap_servers or settings.kafka.bootstrap_servers
        self._links = Links(addresses, login, client_id, self.timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection. Never raises."""
        self._links.close()

    # --- cluster ---

    def cluster(self) -> Cluster:
        """The cluster's id, brokers (also fenced ones, if Kafka reports them) and controller."""
        try:
            answer = self._links.ask_any(lambda: admin_api.DescribeClusterRequest(include_fenced_brokers=True))
        except AdminUnsupportedError:  # before 2.8
            answer = self._links.ask_any(lambda: metadata_api.MetadataRequest(topics=[]))
            brokers = [Broker(found.node_id, found.host, found.port, found.rack) for found in answer.brokers]
        else:
            check(answer.error_code, "The cluster cannot be described", answer.error_message)
            has_fenced = answer.version is not None and answer.version >= 2
            brokers = [
                Broker(
                    found.broker_id, found.host, found.port, found.rack, bool(found.is_fenced) if has_fenced else None
                )
                for found in answer.brokers
            ]
        brokers.sort(key=lambda broker: broker.id)
        self._links.note(broker for broker in brokers if broker.port > 0)
        level = self._metadata_version()  # unset: no KRaft
        try:
            quorum, problem = self.quorum(), ""
        except AdminError as error:
            quorum, problem = None, str(error)
        controller = quorum.leader if quorum is not None else None
        if quorum is None and level is None:  # in KRaft metadata name a random broker as the controller
            controller, problem = (answer.controller_id if answer.controller_id >= 0 else None), ""
        return Cluster(answer.cluster_id or "", tuple(brokers), controller, level, quorum, problem)

    def brokers(self) -> tuple[Broker, ...]:
        return self.cluster().brokers

    def _metadata_version(self) -> int | None:
        answer = self._links.ask_any(greeting)
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features or ()}
        level = levels.get("metadata.version")
        return None if level is None else int(level)

    def versions(self) -> Answers[BrokerVersion]:
        """The protocol versions of each broker. Asks all of them."""
        return self._links.ask_each(self._version_of)

    def _version_of(self, number: int) -> BrokerVersion:
        """The version that a broker's known requests suggest ("" if none does), and its features."""
        answer = self._links.ask(number, greeting())
        known = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        try:
            speaks = ".".join(str(part) for part in infer_broker_version_from_api_versions(known))
        except kafka_errors.KafkaError:
            speaks = ""
        features = {one.name: (one.min_version, one.max_version) for one in answer.supported_features or ()}
        return BrokerVersion(number, speaks, features)

    def quorum(self) -> Quorum:
        """The metadata quorum with the lag of each node. Raises AdminUnsupportedError for a cluster with ZooKeeper."""
        asked = admin_api.DescribeQuorumRequest.TopicData
        answer = self._links.ask_any(
            lambda: admin_api.DescribeQuorumRequest(
                topics=[asked(topic_name=_METADATA_TOPIC, partitions=[asked.PartitionData(partition_index=0)])]
            ),
            controller=True,
        )
        check(answer.error_code, "The metadata quorum cannot be described", answer.error_message)
        found = answer.topics[0].partitions[0]
        check(found.error_code, "The metadata quorum cannot be described", found.error_message)
        ends = [one.log_end_offset for one in found.current_voters if one.replica_id == found.leader_id]
        end = ends[0] if ends else found.high_watermark
        now_ms = time.time() * 1000
        return Quorum(
            leader=found.leader_id,
            epoch=found.leader_epoch,
            high_watermark=found.high_watermark,
            voters=tuple(quorum_replica(one, end, now_ms) for one in found.current_voters),
            observers=tuple(quorum_replica(one, end, now_ms) for one in found.observers),
            clock_ahead_seconds=clock_ahead([*found.current_voters, *found.observers], now_ms),
        )

    def reassignments(self) -> tuple[Reassignment, ...]:
        """Partitions that are being moved to other brokers."""
        timeout_ms = broker_timeout_ms(self.timeout_s)
        answer = self._links.ask_any(
            lambda: admin_api.ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=None), controller=True
        )
        check(answer.error_code, "Running reassignments cannot be listed", answer.error_message)
        return tuple(
            Reassignment(topic.name, one.partition_index, tuple(one.replicas), tuple(one.adding_replicas),
                         tuple(one.removing_replicas))
            for topic in answer.topics
            for one in topic.partitions
        )  # fmt: skip

    def log_dirs(self) -> Answers[tuple[LogDir, ...]]:
        """Each broker's folders, with each replica's size."""
        return self._links.ask_each(self._log_dirs_of)

    def _log_dirs_of(self, number: int) -> tuple[LogDir, ...]:
        answer = self._links.ask(number, admin_api.DescribeLogDirsRequest(topics=None))
        check(answer.error_code, f"Broker {number} does not list its folders")
        if not answer.results:  # how versions before 3 refuse
            raise AdminRefusedError(
                f"Broker {number} lists no folder: probably the right Describe on the cluster is missing."
            )
        return tuple(log_dir(found) for found in answer.results)

    # --- topics ---

    def topics(self, names: Iterable[str] | None = None) -> tuple[Topic, ...]:
        """The named topics (default: all), without missing and hidden ones. Never creates a topic."""
        wanted = None if names is None else sorted(set(names))
        if wanted == []:
            return ()
        try:
            found = self._topics_with_elr(wanted or [])
        except AdminUnsupportedError:  # before 3.9
            found = self._metadata_topics(self._links.ask_any(lambda: _metadata(wanted)))
        return tuple(sorted((topic_of(one) for one in found), key=lambda topic: topic.name))

    def topics_by_broker(self, names: Iterable[str]) -> Answers[tuple[Topic, ...]]:
        """The named topics as each broker knows them. Brokers agree some moments after a change."""
        wanted = sorted(set(names))

        def ask(number: int) -> tuple[Topic, ...]:
            return tuple(topic_of(one) for one in self._metadata_topics(self._links.ask(number, _metadata(wanted))))

        return self._links.ask_each(ask)

    def _topics_with_elr(self, names: list[str]) -> list[Any]:
        """The topics with their eligible leader replicas (KIP-966), read page by page; without names all topics."""
        found: dict[str, Any] = {}
        cursor: Any = None
        while True:
            answer = self._links.ask_any(partial(_page, names, cursor))
            for topic in answer.topics:
                if topic.error_code != 0 or topic.name is None:
                    continue
                if topic.name in found:
                    found[topic.name].partitions += topic.partitions
                else:
                    found[topic.name] = topic
            cursor = answer.next_cursor
            if cursor is None:
                return list(found.values())

    def _metadata_topics(self, answer: Any) -> list[Any]:
        return [topic for topic in answer.topics if topic.error_code in {0, 5} and topic.name is not None]

    def configs(self, kind: Literal["topic", "broker"], names: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
        """The whole configuration of each, by name and key. Brokers are named by their number and asked themselves.
        Raises AdminMissingError if one does not exist."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        if kind == "topic":
            results = list(self._links.ask_any(lambda: _configs(kind, wanted)).results)
        else:
            results = [one for name in wanted for one in self._links.ask(int(name), _configs(kind, [name])).results]
        told: dict[str, dict[str, ConfigEntry]] = {}
        for one in results:
            check(one.error_code, f"The configuration of {kind} {one.resource_name} cannot be read", one.error_message)
            told[one.resource_name] = {entry.name: config_entry(entry) for entry in one.configs}
        return told

    def broker_configs(self, keys: Sequence[str]) -> Answers[dict[str, ConfigEntry]]:
        """The values of ``keys`` in every broker's configuration. Needs DescribeConfigs on the cluster."""

        def ask(number: int) -> dict[str, ConfigEntry]:
            (one,) = self._links.ask(number, _configs("broker", [str(number)], keys)).results
            check(one.error_code, f"The configuration of broker {number} cannot be read", one.error_message)
            return {entry.name: config_entry(entry) for entry in one.configs}

        return self._links.ask_each(ask)


def _configs(kind: str, names: Iterable[str], keys: Sequence[str] | None = None) -> Any:
    """A request for these keys (default: all) of the configuration of each."""
    asked = admin_api.DescribeConfigsRequest.DescribeConfigsResource
    wanted = None if keys is None else list(keys)
    return admin_api.DescribeConfigsRequest(
        resources=[
            asked(resource_type=_RESOURCE[kind], resource_name=name, configuration_keys=wanted) for name in names
        ],
        include_synonyms=False,
        include_documentation=False,
    )


def _page(names: list[str], cursor: Any) -> Any:
    """A request for a page of topics; ``cursor`` is the next page's, from the last answer, or None for the first."""
    asked = admin_api.DescribeTopicPartitionsRequest
    return asked(
        topics=[asked.TopicRequest(name=name) for name in names],
        response_partition_limit=_PAGE,
        cursor=(
            None
            if cursor is None
            else asked.Cursor(topic_name=cursor.topic_name, partition_index=cursor.partition_index)
        ),
    )


def _metadata(names: list[str] | None) -> Any:
    topics = None if names is None else [metadata_api.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return metadata_api.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
