"""A cluster of three Kafka nodes loses some of them, one after the other or all, under load.

Nothing is missing or foreign, order is kept, no duplicates (the same producer repeats with the same sequence numbers),
and what no record could be written for lasts no longer than said.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.client import ConnectionGroup

from bridge.kafka.contacts import Contacts
from bridge.kafka.producer import KafkaProducer
from config.errors import ExitStatus
from gateway.local.embedded.kafka import KafkaCluster
from gateway.tools.doctor.model import Severity
from tests.brokers.fixtures import shared
from tests.brokers.kafka_backend import kafka_settings, read_topic
from tests.brokers.kafka_cluster import ClusterAdmin
from tests.brokers.mosquitto import Mosquitto
from tests.chaos.cluster_case import ClusterCase
from tests.chaos.command_case import DEVICES, Load, begin, flows, judge
from tests.chaos.commands import Device, Site
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import FULL
from tests.chaos.operate_case import Lookout
from tests.doctor_looks import Looked, look
from tests.producer_port import fill, running, sent, values
from tests.waiting import passes, until, wait_until

pytestmark = pytest.mark.slow

TIMES = 3 if FULL else 1
BUSY = 1.0 if FULL else 3.0  # the short form shares its cores with other tests, and three brokers want theirs
GAP_S = 5.0 * BUSY  # with the recommended broker settings; 2.9 to 4.1 s were measured
CONTROLLER_GAP_S = 8.0 * BUSY  # an election of the controller comes first, some 2 s more; 5.2 to 5.6 s


@pytest.fixture(scope="module")
def admin() -> Iterator[ClusterAdmin]:
    with shared(KafkaCluster(3, heap_mib=256, settings={"auto.leader.rebalance.enable": "false"})) as cluster:
        yield ClusterAdmin(cluster)


@pytest.fixture
def case(admin: ClusterAdmin, make_gateway: MakeGateway, unique: str) -> Iterator[ClusterCase]:
    # A request time-out longer than a gap may be: nobody waits for it.
    with ClusterCase(admin, make_gateway, unique, kafka={"request_timeout": "20s"}) as case:
        yield case


def another(node: int) -> int:
    return node % 3 + 1


def killed_and_restarted(case: ClusterCase, victim: int) -> None:
    """One node dies, its partitions move, it comes back and leads again."""
    admin = case.admin
    admin.cluster.kill(victim)
    case.lasts(2)
    assert case.gateway.ready(), case.gateway.reasons()
    admin.cluster.restart(victim)
    admin.wait_in_sync(case.topic)
    admin.elect_preferred(case.topic)
    case.lasts(0.3)


def test_a_leader_says_that_it_waits_for_a_replica_before_the_client_gives_up(admin: ClusterAdmin, unique: str) -> None:
    """acks=all, and a follower in sync is frozen. Were the time-outs equal, the client would take the leader for
    silent, hang up, and never read its answer."""
    admin.heal()
    controller = admin.controller()
    leader = another(controller)
    (follower,) = {1, 2, 3} - {controller, leader}
    admin.create(unique, [[leader, follower]])
    tries = asyncio.run(_written_beside_a_frozen_follower(admin, unique, leader, follower))
    (found,) = read_topic(admin.cluster.bootstrap, unique)
    assert [record.value for record in found] == [b"before", *[b"waiting"] * tries]


async def _written_beside_a_frozen_follower(admin: ClusterAdmin, topic: str, leader: int, follower: int) -> int:
    """How often it was tried: a fifth of the client's second is left to a leader that may have no time just then."""
    contacts, retried = Contacts(), asyncio.Queue[str]()
    settings = kafka_settings(admin.cluster.bootstrap, request_timeout="1s")
    producer = KafkaProducer(
        settings, "patient", [topic], None, lambda _topic, error: retried.put_nowait(str(error)), None, contacts
    )
    async with asyncio.timeout(120), running(producer):
        assert await sent(producer, topic, values(b"before")) is None
        assert producer._client is not None
        said, tries = [""], 0
        while "REQUEST_TIMED_OUT" not in said[0] and tries < 5:
            tries += 1
            admin.wait_in_sync(topic)
            connection = producer._client._conns[leader, ConnectionGroup.DEFAULT]
            admin.cluster.freeze(follower)
            try:
                answer = producer.send(topic, 0, fill(producer.create_batch(compressed=True), values(b"waiting")))
                await until(lambda: not retried.empty() or answer.done())  # noqa: B023
            finally:
                admin.cluster.thaw(follower)
            await asyncio.wait([answer])
            assert producer.failure(answer) is None
            said = [retried.get_nowait() for _ in range(retried.qsize())] or [""]
        assert "REQUEST_TIMED_OUT" in said[0], f"the broker's own word; {said}"
        assert producer._client._conns[leader, ConnectionGroup.DEFAULT] is connection
        contact = contacts.get(leader)
        assert contact is not None
        assert contact.problem is None
        return tries


def test_the_controller_killed(case: ClusterCase, admin: ClusterAdmin) -> None:
    for _ in range(TIMES):
        killed_and_restarted(case, admin.controller())
    found = case.finish()
    assert found.taken.gap_s() <= CONTROLLER_GAP_S, str(found)


def test_the_coordinator_of_commands_killed(
    admin: ClusterAdmin, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    """Their group goes on behind the next coordinator, which knows its members and commits: nothing is sent twice,
    unless the way to it took longer than the members' session; then once for each device."""
    admin.heal()
    bootstrap = admin.cluster.bootstrap
    site = Site(bootstrap, unique).create()
    tables = {"kafka": {"bootstrap_servers": bootstrap.split(","), "topics": {"create": True, "replication": 3}}}
    gateway = begin(make_gateway, site, mosquitto.port, group=unique, answer_timeout="2m", tables=tables)
    with contextlib.ExitStack() as stack:
        devices = [stack.enter_context(Device(mosquitto.port, name)) for name in DEVICES]
        load = stack.enter_context(Load(site))
        for _ in range(TIMES):
            flows(devices)
            victim = admin.coordinator(unique)
            admin.cluster.kill(victim)
            flows(devices)
            admin.cluster.restart(victim)
            for topic in (site.commands, site.statuses, site.answers):
                admin.wait_in_sync(topic)
        load.__exit__()
        lost = len(gateway.events("commands_lost"))
        print(f"{lost} times lost")
        judge(site, load, devices, copies=lost * len(devices))


def test_one_frozen_and_thawed(case: ClusterCase, admin: ClusterAdmin) -> None:
    """It neither answers nor hangs up: waiting for it would last for kafka.request_timeout, and again."""
    victim = another(admin.controller())
    led = [number for number, leader in admin.leaders(case.topic).items() if leader == victim]
    admin.cluster.freeze(victim)
    frozen = time.monotonic()
    case.lasts(2)
    # Its partitions have moved, so that it is no trouble of ours any more; it is missing all the same.
    wait_until(lambda: names(case, victim, *led, severity="warning"), f"it is named; {case.gateway.problems()}")
    passes((40 if FULL else 12) - (time.monotonic() - frozen))
    case.lasts(1)
    assert case.gateway.ready(), case.gateway.reasons()
    retries = case.gateway.metric("gateway_kafka_retries_total")
    admin.cluster.thaw(victim)
    admin.wait_in_sync(case.topic)
    case.lasts(1)
    # It takes itself for a leader still, and may be asked: no batch goes to it, none to a right leader is given up.
    assert case.gateway.metric("gateway_kafka_retries_total") == retries, case.gateway.tail()
    admin.elect_preferred(case.topic)
    case.lasts(1)
    # Late messages are a problem for as long as they are among those of the last 20 s.
    wait_until(lambda: not case.gateway.problems(), f"nothing is wrong any more; {case.gateway.problems()}", 60)
    found = case.finish()
    assert found.taken.gap_s() <= GAP_S, str(found)


def test_a_frozen_one_is_named_with_its_partitions_until_it_is_thawed(
    admin: ClusterAdmin, make_gateway: MakeGateway, unique: str
) -> None:
    """Within 30 s, as somebody who only reads /status: the broker, its address, what it led, and nobody else."""
    # One copy each: nobody can take its partition over.
    ledger = {"topic": f"{unique}-ledger", "interval": "1s"}
    with ClusterCase(admin, make_gateway, unique, replicas=[[1], [2], [3]], ledger=ledger) as case:
        wait_until(lambda: not case.gateway.problems(), f"all is well; {case.gateway.problems()}")
        victim = another(admin.controller())
        frozen = time.monotonic()
        admin.cluster.freeze(victim)
        wait_until(lambda: names(case, victim, victim - 1), f"it is named; {case.gateway.problems()}", 30)
        print(f"named after {time.monotonic() - frozen:.1f} s")

        def accused() -> list[str]:
            return [problem["subject"] for problem in case.gateway.problems() if problem["id"] == "broker-silent"]

        def mute() -> list[int]:
            return [row["id"] for row in case.gateway.status()["kafka"]["brokers"] if row["mute_seconds"] >= 5]

        wait_until(lambda: accused() == [f"broker {victim}"], lambda: f"it alone is accused; {accused()}")
        wait_until(lambda: mute() == [victim], lambda: f"it alone is mute; {mute()}")
        down = f'{{broker="{victim}"}}'
        wait_until(lambda: case.gateway.samples("gateway_kafka_broker_up")[down] == 0, "the metrics say so")
        partition = {(row["topic"], row["partition"]): row for row in case.gateway.status()["partitions"]}
        stands_still = partition[unique, victim - 1]
        assert stands_still["health"] in {"silent", "leaderless"}, stands_still
        assert stands_still["waiting"] + stands_still["spooled"] > 0, "with the spool it is silent all the same"
        label = f'{{partition="{victim - 1}",topic="{unique}"}}'
        assert case.gateway.samples("gateway_kafka_partition_silence_seconds")[label] >= 3
        wait_until(lambda: admin.leaders(case.topic).get(victim - 1, -1) < 0, "the cluster has noticed it")
        code, said = case.gateway.command("verify", "--json")
        assert code == ExitStatus.UNJUDGED, said
        (document,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        states = {place["partition"]: place["state"] for place in document["partitions"]}
        assert states.pop(victim - 1) == "unjudged", said
        assert states
        assert not {"unjudged", "missing"} & set(states.values()), said
        admin.cluster.thaw(victim)
        wait_until(lambda: not case.gateway.problems(), f"nothing is wrong any more; {case.gateway.problems()}")
        admin.wait_in_sync(case.topic)
        case.finish()


def test_doctor_tells_a_frozen_broker_from_a_dead_one_and_names_its_partitions(
    admin: ClusterAdmin, tmp_path: Path, unique: str
) -> None:
    """Before the cluster has noticed it, and after that, when the partition that it alone has is without a leader."""
    admin.create(unique, [[1], [2], [3]])
    admin.create(f"{unique}-safe", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], min_insync_replicas="2")
    frozen, dead = 2, 3

    def doctor() -> Looked:
        route = {"name": "one", "filters": ["devices/#"], "topic": unique}
        return look(
            tmp_path, "kafka", timeout_s=2,
            kafka={"bootstrap_servers": admin.cluster.bootstrap.split(",")[:2]},  # the third is known by metadata
            routes=[route, {"name": "two", "filters": ["others/#"], "topic": f"{unique}-safe"}],
            dead_letter={"topic": f"{unique}-safe-dead"}, ledger={"topic": ""},
        )  # fmt: skip

    def place(node: int) -> str:
        return f"broker {node} ({admin.cluster.address(node)})"

    def before_the_cluster_notices() -> tuple[Looked, float]:
        """A look at a frozen broker. The cluster notices after 3 s: on a busy machine a look may come too late, or
        while leaders are moving, which it says of the others beside what they take."""
        for _ in range(5):
            admin.cluster.freeze(frozen)
            began = time.monotonic()
            looked = doctor()
            is_moving = any(len(looked.all("produce", place(node))) > 1 for node in (1, 3))
            if not (is_moving or looked.says("No broker leads") or time.monotonic() - began > 20):
                break
            admin.cluster.thaw(frozen)
            for topic in (unique, f"{unique}-safe"):
                admin.wait_in_sync(topic)
                admin.elect_preferred(topic)
        return looked, time.monotonic() - began

    try:
        looked, took_s = before_the_cluster_notices()
        began = time.monotonic()
        login = looked.one("login", place(frozen))
        assert login.facts["state"] == "frozen", looked.bad
        assert f"{unique}/1" in login.text, login.text
        assert looked.says(rf"{unique}-safe/0, 1, 2|{unique}-safe/[012]"), looked.bad
        others = [looked.one("produce", place(node)).severity for node in (1, 3)]
        assert others == [Severity.OK, Severity.OK], looked.bad
        assert took_s < 20, f"{took_s:.1f} s with time-outs of 2 s"
        assert looked.status == 69
        while not looked.says("No broker leads"):
            assert time.monotonic() - began < 60, looked.bad
            looked = doctor()
        assert looked.one("login", place(frozen)).facts["state"] == "frozen", "though metadata do not list it any more"
        leaders = looked.one("leaders")
        assert leaders.facts["partitions"] == [f"{unique}/1"]
        assert leaders.facts["brokers"] == [frozen]
        assert looked.one("replicas").facts["brokers"] == [frozen]
    finally:
        admin.cluster.thaw(frozen)
    admin.wait_in_sync(f"{unique}-safe")
    admin.cluster.kill(dead)
    try:
        looked = doctor()
        assert looked.one("tcp", place(dead)).facts["state"] == "dead", looked.bad
        assert looked.one("login", place(dead)).severity is Severity.SKIPPED
        assert f"{unique}/2" in looked.one("tcp", place(dead)).text
    finally:
        admin.cluster.restart(dead)
        admin.heal()
    admin.wait_in_sync(f"{unique}-safe")
    admin.wait_in_sync(unique)
    admin.elect_preferred(unique)
    looked = doctor()
    assert {check.name for check in looked.report.checks if check.severity is Severity.FAIL} == {"topics"}, looked.bad
    assert looked.one("leaders").severity is Severity.OK


def names(case: ClusterCase, broker: int, *partitions: int, severity: str = "critical") -> bool:
    """Whether /status names a broker with its address, and all of these partitions with it."""
    rows = {row["id"]: row for row in case.gateway.status()["kafka"]["brokers"]}
    called = f"Broker {broker} ({rows[broker]['host']}:{rows[broker]['port']})"
    return any(
        problem["severity"] == severity
        and problem["text"].startswith(called)
        and all(re.search(rf"{case.topic}/{number}\b", problem["text"]) for number in partitions)
        for problem in case.gateway.problems()
    )


def test_all_restarted_one_after_the_other(case: ClusterCase, admin: ClusterAdmin) -> None:
    """As an upgrade does it: each in an orderly way, the next when all replicas have caught up. Nothing critical is
    said meanwhile, and no broker or partition is called silent."""
    with Lookout(case.gateway) as lookout:
        for _ in range(2 if FULL else 1):
            for node in (1, 2, 3):
                admin.cluster.restart(node)
                admin.wait_in_sync(case.topic)
                case.lasts(0.3)
    assert lookout.looks > 5
    assert not [one for one in lookout.seen if one.severity == "critical"], lookout.seen
    found = case.finish()
    assert found.taken.gap_s() <= GAP_S, str(found)
    assert case.gateway.metric("gateway_kafka_producer_incarnations_total") == 1


def stopped(case: ClusterCase, seconds: float) -> None:
    """Nothing is acknowledged for so long, and the gateway says so."""
    wait_until(lambda: not case.gateway.ready(), "/readyz turns red")
    before = case.sent()
    passes(seconds)
    assert case.sent() == before, "acknowledged without enough replicas"


def too_few(case: ClusterCase) -> None:
    """What Kafka says is said on /readyz, in the log and in the metrics."""
    wait_until(
        lambda: any("NOT_ENOUGH_REPLICAS" in reason for reason in case.gateway.reasons()),
        f"/readyz gives the reason; {case.gateway.reasons()}", 40,
    )  # fmt: skip
    assert any("NOT_ENOUGH_REPLICAS" in line["error"] for line in case.gateway.events("batch_retried"))
    assert case.gateway.metric("gateway_kafka_retries_total") > 0


def test_fewer_replicas_than_the_topic_asks_for(admin: ClusterAdmin, make_gateway: MakeGateway, unique: str) -> None:
    """NOT_ENOUGH_REPLICAS, with leaders and controller there, until the replica is back."""
    with ClusterCase(admin, make_gateway, unique, config={"min_insync_replicas": "3"}) as case:
        victim = another(admin.controller())
        admin.cluster.kill(victim)
        too_few(case)
        stopped(case, 20 if FULL else 2)
        admin.cluster.restart(victim)
        case.gateway.wait_ready()
        case.lasts(1)
        case.finish()


def test_two_of_three_killed(case: ClusterCase, admin: ClusterAdmin) -> None:
    """With them goes the majority of controllers: nobody leads, elects or tells. One back is enough."""
    victims = (2, 3)
    for node in victims:
        admin.cluster.kill(node)
    stopped(case, 20 if FULL else 4)
    admin.cluster.restart(victims[0])
    case.gateway.wait_ready()
    case.lasts(1)
    admin.cluster.restart(victims[1])
    case.finish()
