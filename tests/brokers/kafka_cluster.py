"""A Kafka of three nodes for failure tests: who leads what, what an operator may do to it, and when it took records.

Each node is broker and controller, with the settings docs/failures.md recommends. Everything here blocks.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import AlterPartitionReassignmentsRequest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, ElectionType, KafkaException, Message
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaAdminClient
from kafka.errors import KafkaError as ClientError

from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.runtime.ports import reserve_ports
from tests.brokers.proxy import FaultyProxy
from tests.brokers.reading import read_all
from tests.waiting import wait_until

T = TypeVar("T")
SECONDS = 60.0


def rotated(partitions: int) -> list[list[int]]:
    """Replicas on all three nodes, the first of each partition (its preferred leader) taken in turn."""
    return [[(first + step) % 3 + 1 for step in range(3)] for first in range(partitions)]


@contextlib.contextmanager
def proxied_kafka(**options: Any) -> Iterator[tuple[KafkaCluster, FaultyProxy]]:
    """A Kafka of one node (arguments of KafkaCluster) that tells its clients to come through a proxy.

    Clients start at ``proxy.port``, or, to be sent there, at ``cluster.bootstrap``."""
    ports = reserve_ports(1)
    try:
        proxy = FaultyProxy(0, port=ports.ports[0])
        settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}", **options.pop("settings", {})}
        with KafkaCluster(settings=settings, **options) as cluster, proxy:
            proxy.target = int(cluster.bootstrap.rpartition(":")[2])
            yield cluster, proxy
    finally:
        ports.release()


@dataclass
class Taken:
    """What a topic holds: (device, sequence number) and the brokers' append times, by partition."""

    partitions: list[list[tuple[str, int]]]
    appended_ms: list[list[int]] = field(default_factory=list)

    def gap_s(self, partitions: Sequence[int] | None = None) -> float:
        """The longest time in which one of the partitions got nothing, between its first record and its last."""
        chosen = range(len(self.appended_ms)) if partitions is None else partitions
        return max((_longest(self.appended_ms[number]) for number in chosen), default=0.0)


def _longest(times_ms: list[int]) -> float:
    return max((later - earlier for earlier, later in itertools.pairwise(times_ms)), default=0) / 1000


class ClusterAdmin:
    """An operator at a cluster: asks and changes through clients that are not the gateway's."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    # --- topics ---

    def create(self, topic: str, assignment: Sequence[Sequence[int]] | None = None, **config: str) -> None:
        """Create a topic with these replicas by partition, six rotated ones unless told, and wait for its leaders.

        Its records carry the time of their append, so that gaps are the brokers' own word.
        """
        replicas = [list(nodes) for nodes in assignment or rotated(6)]
        config = {"message.timestamp.type": "LogAppendTime", **{k.replace("_", "."): v for k, v in config.items()}}
        new = NewTopic(topic, num_partitions=len(replicas), replica_assignment=replicas, config=config)
        self._admin.create_topics([new])[topic].result(SECONDS)
        wait_until(lambda: self.leaders(topic) == {n: nodes[0] for n, nodes in enumerate(replicas)}, f"{topic} is led")

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(SECONDS)

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(SECONDS)
        wait_until(lambda: len(self.leaders(topic)) == partitions, f"{topic} has {partitions} partitions")

    def leaders(self, topic: str) -> dict[int, int]:
        """Leader by partition, -1 for none; empty for a topic that is not there."""
        return {number: found.leader for number, found in self._described(topic).items()}

    def in_sync(self, topic: str) -> dict[int, set[int]]:
        return {number: set(found.isrs) for number, found in self._described(topic).items()}

    def wait_in_sync(self, topic: str) -> None:
        """Wait until every replica has caught up."""

        def caught_up() -> bool:
            found = self._described(topic)
            return bool(found) and all(set(p.isrs) == set(p.replicas) for p in found.values())

        wait_until(caught_up, f"every replica of {topic} is in sync")

    def _described(self, topic: str) -> dict[int, Any]:
        try:
            found = self._admin.list_topics(topic, timeout=SECONDS).topics[topic]
        except KafkaException:
            return {}
        return dict(found.partitions) if found.error is None else {}

    def elect_preferred(self, topic: str) -> None:
        """Give each partition back to the first of its replicas; those it has already are no error.

        Brokers hear of it one after the other, and `leaders` asks any of them: a caller that compares waits.
        """

        def elected() -> bool:
            # Asked before looking: a broker may still tell of leaders and replicas before the last change. And again
            # if not so: a node that has come back is no candidate before the controller has let it in.
            self._admin.elect_leaders(ElectionType.PREFERRED, None).result(SECONDS)
            return all(found.leader == found.replicas[0] for found in self._described(topic).values())

        wait_until(elected, f"{topic} has its preferred leaders")

    def reassign(self, topic: str, assignment: Sequence[Sequence[int]]) -> None:
        """Move partitions to other nodes, or order; returns when it is done."""
        partitions = [(number, list(nodes), {}) for number, nodes in enumerate(assignment)]
        request: Any = AlterPartitionReassignmentsRequest(30_000, [(topic, partitions, {})], {})

        async def ask(admin: AIOKafkaAdminClient) -> None:
            answer = await admin._send_request(request)
            codes = {answer.error_code, *(code for _, many, _ in answer.responses for _, code, *_ in many)}
            assert codes == {0}, [for_code(code).__name__ for code in codes]

        def asked() -> bool:
            with contextlib.suppress(KafkaError, ClientError, OSError, TimeoutError):  # asking again does no harm
                asyncio.run(self._with_client(ask))
                return True
            return False

        wait_until(asked, f"the controller has heard how {topic} is to move")
        wanted = [list(nodes) for nodes in assignment]
        wait_until(
            lambda: [list(found.replicas) for _, found in sorted(self._described(topic).items())] == wanted,
            f"{topic} has moved",
        )
        self.wait_in_sync(topic)

    # --- who is who ---

    def controller(self) -> int:
        """The active controller. Clients' own word for it is any broker, in KRaft."""

        def ask() -> int:
            servers = self.cluster.bootstrap.split(",")
            client = KafkaAdminClient(bootstrap_servers=servers, request_timeout_ms=5000, bootstrap_timeout_ms=5000)
            with contextlib.closing(client):
                return int(client.describe_metadata_quorum()["topics"][0]["partitions"][0]["leader_id"])

        return self._node(ask, "a controller is elected")

    def coordinator(self, group: str) -> int:
        """The node that keeps a group's offsets."""

        def ask() -> int:
            return asyncio.run(self._with_client(lambda admin: admin.find_coordinator(group)))

        return self._node(ask, f"group {group} has a coordinator")

    def _node(self, ask: Callable[[], int], what: str) -> int:
        """Ask until the answer is one of the nodes."""
        found = -1

        def asked() -> bool:
            nonlocal found
            with contextlib.suppress(KafkaError, ClientError, OSError, TimeoutError):
                found = ask()
            return found in range(1, self.cluster.nodes + 1)

        wait_until(asked, what)
        return found

    async def _with_client(self, work: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap.split(","), request_timeout_ms=5000)
        try:
            await admin.start()
            return await work(admin)
        finally:
            await admin.close()

    def alive(self) -> list[int]:
        return [node for node in range(1, self.cluster.nodes + 1) if self.cluster.alive(node)]

    def heal(self) -> None:
        """Bring every node back, thawed, and wait until each is in the cluster. For the start of a test."""
        for node in range(1, self.cluster.nodes + 1):
            if self.cluster.alive(node):
                self.cluster.thaw(node)
        down = [node for node in range(1, self.cluster.nodes + 1) if not self.cluster.alive(node)]
        if down:
            self.cluster.restart(*down)
        wait_until(
            lambda: len(self._admin.list_topics(timeout=SECONDS).brokers) == self.cluster.nodes, "all brokers are there"
        )

    # --- records ---

    def consumer(self, group: str, topic: str) -> Consumer:
        """A member of a consumer group, subscribed; its offsets make the group have a coordinator."""
        consumer = Consumer(
            {"bootstrap.servers": self.cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
             "session.timeout.ms": 6000, "log_level": 0}
        )  # fmt: skip
        consumer.subscribe([topic])
        return consumer

    def read(self, topic: str) -> Taken:
        """All of a topic as it is now, from the beginning."""

        def pick(message: Message) -> tuple[tuple[str, int], int | None]:
            kind, appended_ms = message.timestamp()
            document = json.loads(message.value() or b"")
            return (document["device"], document["seq"]), appended_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None

        logs = read_all(self.cluster.bootstrap, topic, pick)
        return Taken(
            [[identity for identity, _ in log] for log in logs],
            [[appended_ms for _, appended_ms in log if appended_ms is not None] for log in logs],
        )
