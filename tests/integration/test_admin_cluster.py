"""Kafka's administration on three nodes of which one is frozen, killed, or on its way elsewhere."""

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from config.errors import ExitStatus
from config.settings import Settings
from gateway.admin.audit import AuditLog
from gateway.admin.groups import OFFSETS_TOPIC
from gateway.admin.kafka import KafkaAdmin
from gateway.admin.model import Partition
from gateway.admin.topic_apply import apply, needed_steps
from gateway.admin.topic_plan import wanted_topics
from gateway.cli.main import main
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.kafka_cluster import ClusterAdmin
from tests.brokers.topics import produce
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

SECONDS = 60.0


@pytest.fixture(scope="module")
def operator() -> Iterator[ClusterAdmin]:
    settings = {
        "auto.leader.rebalance.enable": "false",
        "offsets.topic.num.partitions": "12",
        # How long a broker waits for a controller that hangs with what clients had it pass on: 30 s by default.
        "controller.socket.timeout.ms": "3000",
    }
    with KafkaCluster(3, heap_mib=256, settings=settings) as cluster:
        yield ClusterAdmin(cluster)


@pytest.fixture(autouse=True)
def _healed(operator: ClusterAdmin) -> None:
    operator.heal()
    with KafkaAdmin(settings_of(operator)) as admin:
        wait_until(lambda: [one.fenced for one in admin.brokers()] == [False] * 3, "every broker takes part")


def settings_of(operator: ClusterAdmin, **tables: Any) -> Settings:
    kafka = {"bootstrap_servers": operator.cluster.bootstrap.split(","), **tables.pop("kafka", {})}
    return Settings.model_validate({"kafka": kafka, "ledger": {"topic": ""}, **tables})


def everywhere(operator: ClusterAdmin, names: Iterable[str], shows: Callable[[Partition], bool]) -> None:
    """Wait until each broker that runs, of which a command asks any, shows all partitions of these topics so."""
    names = set(names)
    with KafkaAdmin(settings_of(operator)) as admin:

        def shown() -> bool:
            admin.brokers()  # one that comes back is asked, too
            views = admin.topics_by_broker(names).by_broker
            return set(views) == set(operator.alive()) and all(
                {topic.name for topic in topics} == names
                and all(shows(one) for topic in topics for one in topic.partitions)
                for topics in views.values()
            )

        wait_until(shown, "every broker knows it")


@pytest.fixture
def run(operator: ClusterAdmin, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The command line with ``--json``; its object, after a look at its status (None: any will do)."""
    file = tmp_path / "gateway.toml"
    servers = json.dumps(operator.cluster.bootstrap.split(","))
    file.write_text(f'data_dir = "{tmp_path}"\n[kafka]\nbootstrap_servers = {servers}\n')

    def run(*arguments: str, status: ExitStatus | None = ExitStatus.OK) -> Any:
        capsys.readouterr()
        ended = main([*arguments, "--json", "--config", str(file)])
        out, said = capsys.readouterr()
        assert status is None or ended == status, (ended, out, said)
        return json.loads(out)

    return run


@pytest.mark.parametrize("which", ["the controller", "another"])
def test_a_frozen_broker_is_named_and_blocks_no_view(
    operator: ClusterAdmin, run: Callable[..., Any], unique: str, which: str
) -> None:
    operator.create(unique)
    controller = operator.controller()
    frozen = controller if which == "the controller" else controller % 3 + 1
    operator.cluster.freeze(frozen)
    began = time.monotonic()
    described = run("cluster", "describe", status=ExitStatus.INCOMPLETE)
    took_s = time.monotonic() - began
    assert [one["id"] for one in described["unanswered"]] == [frozen]
    assert described["unanswered"][0]["silent"] is True
    assert set(described["folders"]) == {str(node) for node in (1, 2, 3) if node != frozen}
    groups = run("groups", "list", status=None)  # once it is fenced, others keep what it kept
    assert {one["id"] for one in groups["unanswered"]} <= {frozen}
    assert unique in [topic["name"] for topic in run("topics", "list")["topics"]]
    assert len(run("leaders", "show")["brokers"]) == 3
    assert took_s < 20, "one after the other, two questions take the time-out of 10 s twice"
    if which == "another":
        assert described["cluster"]["controller"] == controller


@pytest.mark.parametrize("death", ["kill", "freeze"])
def test_apply_ends_at_the_same_state_when_the_controller_dies_midway(
    operator: ClusterAdmin, unique: str, tmp_path: Path, death: str
) -> None:
    declare = [{"name": f"{unique}-{n}", "partitions": 3, "replication": 2, "retention": "1h"} for n in range(8)]
    tables = {"dead_letter": {"topic": f"{unique}-0"}, "kafka": {"topics": {"declare": declare}}}
    settings = settings_of(operator, admin={"timeout": "1s"}, **tables)
    wanted = wanted_topics(settings)
    victim = operator.controller()
    dead = threading.Event()

    def told(text: str) -> None:
        if text.startswith("create") and not dead.is_set():
            dead.set()
            getattr(operator.cluster, death)(victim)

    with KafkaAdmin(settings) as admin:
        audit = AuditLog(tmp_path / "admin.log", "test", "cluster")
        result = apply(admin, wanted, audit, SECONDS, tell=told)
    assert dead.is_set()
    assert (result.left, result.behind) == ({}, ())
    with KafkaAdmin(settings_of(operator)) as admin:
        assert all(step.kind == "nothing" for step in needed_steps(admin, wanted))
    operator.heal()
    everywhere(operator, (topic.name for topic in wanted), lambda one: one.leader is not None)
    with KafkaAdmin(settings_of(operator)) as admin:
        again = apply(admin, wanted, audit, SECONDS)
        assert (again.done, again.left, again.behind) == ([], {}, ())
    lines = [json.loads(line) for line in (tmp_path / "admin.log").read_text().splitlines()]
    intents = [line["id"] for line in lines if line["phase"] == "intent"]
    assert intents == [line["id"] for line in lines if line["phase"] == "outcome"]
    assert len(intents) >= len(declare)


def test_leaders_go_back_to_the_preferred_ones(operator: ClusterAdmin, run: Callable[..., Any], unique: str) -> None:
    operator.create(unique)
    operator.wait_in_sync(unique)
    operator.cluster.stop_node(2)
    everywhere(operator, [unique], lambda one: one.leader != 2 and 2 not in one.isr)
    shown = run("leaders", "show", "--topic", unique)
    assert {one["broker"]: one["imbalance"] for one in shown["brokers"]}[2] == 1.0
    assert {(one["preferred"], one["in_sync"]) for one in shown["not_preferred"]} == {(2, False)}
    run("leaders", "elect", "--topic", unique, "--yes", status=ExitStatus.INCOMPLETE)  # nobody to elect
    operator.cluster.restart(2)
    everywhere(operator, [unique], lambda one: not one.under_replicated)
    elected = run("leaders", "elect", "--topic", unique, "--yes")
    assert {place["partition"] for place in elected["elected"]} == {1, 4}
    assert {one["broker"]: one["imbalance"] for one in elected["after"]} == {1: 0.0, 2: 0.0, 3: 0.0}
    preferred = {number: number % 3 + 1 for number in range(6)}
    # The brokers hear of it one after the other, and this asks any of them.
    wait_until(lambda: operator.leaders(unique) == preferred, "all brokers know the preferred leaders")


def test_a_reassignment_is_seen_on_its_way(operator: ClusterAdmin, run: Callable[..., Any], unique: str) -> None:
    operator.create(unique, [[1], [2]], min_insync_replicas="1")
    for partition in (0, 1):
        values = (random.randbytes(1000) for _ in range(2000))
        produce(operator.cluster.bootstrap, unique, values, partition=partition)
    client = AdminClient({"bootstrap.servers": operator.cluster.bootstrap, "log_level": 0})

    def configure(kind: ResourceType, name: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        client.incremental_alter_configs([resource])[resource].result(SECONDS)

    def throttle(rate: int) -> None:
        for node in (1, 2, 3):
            for side in ("leader", "follower"):
                key = f"{side}.replication.throttled.rate"
                configure(ResourceType.BROKER, str(node), key, str(rate))

    for side in ("leader", "follower"):
        configure(ResourceType.TOPIC, unique, f"{side}.replication.throttled.replicas", "*")
    throttle(20_000)
    moved = threading.Thread(target=operator.reassign, args=(unique, [[3], [2, 3]]), daemon=True)
    moved.start()
    found: list[Any] = []
    lacking: list[str] = []

    def running() -> bool:
        described = run("cluster", "describe")
        found[:] = [one for one in described["reassignments"] if one["topic"] == unique]
        lacking[:] = [place for place in described["under_replicated"] if place.startswith(f"{unique}/")]
        return len(found) == 2

    wait_until(running, "both are seen")
    throttle(1 << 30)
    moved.join(SECONDS)
    assert not moved.is_alive()
    first, second = found
    assert (first["partition"], first["adding"], first["removing"]) == (0, [3], [1])
    assert (second["partition"], second["adding"], second["removing"]) == (1, [3], [])
    assert first["bytes"] > 1_900_000
    assert 0 <= first["share"] < 1
    assert lacking == [], "what is being added is not missing"
    wait_until(lambda: not run("cluster", "describe")["reassignments"], "they are over")


def test_a_group_is_kept_where_its_hash_says(operator: ClusterAdmin) -> None:
    """Of 12 partitions on three brokers: the leader of the computed one is whom Kafka names as coordinator."""
    consumer = operator.consumer("first", "nothing")  # has Kafka make the topic
    operator.coordinator("first")
    consumer.close()
    with KafkaAdmin(settings_of(operator)) as admin:
        (topic,) = admin.topics([OFFSETS_TOPIC])
        leaders = {one.number: one.leader for one in topic.partitions}
        names = [f"{os.urandom(4).hex()}-{chr(random.randrange(0x10000, 0x1FFFF))}" for _ in range(40)]
        found = {name: (admin.coordinator(name), leaders[admin.offsets_partition(name)]) for name in names}
    assert {name: pair for name, pair in found.items() if pair[0] != pair[1]} == {}
