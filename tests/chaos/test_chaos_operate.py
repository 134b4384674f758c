"""Things are broken, and looked at with an operator's eyes alone: the page, the alerts, ``gateway doctor``.

Each is named, with what is broken and no other; and nothing is said while nothing is wrong. The cluster's
broker.session.timeout.ms is ten minutes: a frozen broker keeps its leaderships, as in the outage that all this is for.
"""

import contextlib
import datetime as dt
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, AclPermissionType

from gateway.local.runtime.ports import reserve_ports
from tests.brokers.kafka_backend import SECURED, set_rights
from tests.brokers.kafka_cluster import ClusterAdmin
from tests.brokers.packets import Message
from tests.brokers.scripted_rules import Rules
from tests.brokers.secured import SecuredKafka
from tests.brokers.topics import alter_topic
from tests.chaos.harness import FULL, Gateway
from tests.chaos.operate_case import Lookout, Seen, Site, alerts, doctor, looking
from tests.prometheus import Prometheus
from tests.servers.authority import Authority
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow

INTERVAL_S = 15 if FULL else 5
PAGE_S = 30.0
ALERT_S = 120.0
QUIET_S = 180.0 if FULL else 4.0
READER = "reader"
OURS = ("running", "kafka", "emqx")  # the scripted broker lets everybody in, which doctor says under "mqtt"


@dataclass
class Plant:
    """Everything of one site: a cluster, two gateways, a Prometheus that looks at both."""

    admin: ClusterAdmin
    site: Site
    gateway: Gateway  # two workers
    other_site: Site
    other: Gateway  # one process, TLS to its broker, a tiny spool
    authority: Authority
    prometheus: Prometheus

    @property
    def cluster(self) -> SecuredKafka:
        return self.admin.cluster


def secured(cluster: SecuredKafka, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": cluster.sasl_bootstrap.split(","),
        "security": "SASL_PLAINTEXT",
        "sasl": {"username": "gateway", "password": "gateway-secret"},
        **more,
    }


def route(name: str, topic: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "filters": [f"{name}/#"], "topic": topic or name, **more}


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    directory = tmp_path_factory.mktemp("plant")
    settings = {**SECURED, "auto.leader.rebalance.enable": "false", "broker.session.timeout.ms": "600000"}
    ports = reserve_ports(2)
    authority = Authority(directory / "authority")
    with contextlib.ExitStack() as stack:
        stack.callback(ports.release)
        cluster = stack.enter_context(SecuredKafka(3, sasl=True, heap_mib=256, settings=settings))
        admin = ClusterAdmin(cluster)
        for topic in ("devices", "denied", "thin", "other"):
            admin.create(topic)
        admin.create("single", [[1], [2], [3]])
        site = stack.enter_context(Site(Rules(strategy="hash_clientid", queue=1000, max_inflight=32)))
        other_site = stack.enter_context(Site(Rules(queue=100_000), tls=server_tls(authority)))
        gateway = Gateway(directory / "gateway", ports.ports[0], gateway_tables(cluster, site))
        other = Gateway(directory / "other", ports.ports[1], other_tables(cluster, other_site, authority))
        for one in (gateway, other):
            stack.enter_context(one)
            one.start()
        scraped = looking(directory / "prometheus", *ports.ports, interval_s=INTERVAL_S)
        prometheus = stack.enter_context(scraped)
        site.broker.start_load(100)
        yield Plant(admin, site, gateway, other_site, other, authority, prometheus)
        site.broker.stop_load()


def server_tls(authority: Authority) -> ssl.SSLContext:
    """Asks for a client certificate, and looks at its days."""
    context = authority.issue("broker").server_context(authority.ca_file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # refuses in the handshake; 1.3 afterwards
    return context


def gateway_tables(cluster: SecuredKafka, site: Site) -> dict[str, Any]:
    return {
        "workers": 2,
        "mqtt": {"addresses": [f"mqtt://127.0.0.1:{site.broker.port}"], "sessions": 2},
        "kafka": secured(cluster, topics={"create": True, "partitions": 6, "replication": 3}),
        "emqx": {"url": site.rest.url, "api_key": "key", "api_secret": "secret", "interval": "5s"},
        "dead_letter": {"min_messages": 50, "max_share": 0.2, "retry_after": "5s"},
        "routes": [
            route("denied"),
            route("thin"),
            route("single"),
            route("typed", "typed-${payload.kind}", allowed_topics="typed-[a-z]+"),
            route("devices"),
        ],
    }


def other_tables(cluster: SecuredKafka, site: Site, authority: Authority) -> dict[str, Any]:
    client = authority.issue("client", left=dt.timedelta(days=5))
    tls = {"ca_file": str(authority.ca_file), "certificate_file": str(client.certificate), "key_file": str(client.key)}
    return {
        "instance": "other",
        "mqtt": {"addresses": [f"mqtts://localhost:{site.broker.port}"], "sessions": 1, "tls": tls},
        "kafka": secured(cluster, batch_bytes=65_536, max_record_bytes=100_000),
        "spool": {"max_bytes": 2 << 20},
        "dead_letter": {"topic": "gateway-dead-letters"},
        "routes": [route("other")],
    }


# --- what an operator sees ---


def on_page(gateway: Gateway, name: str, *words: str, severity: str = "critical", within_s: float = PAGE_S) -> str:
    """The sentence of a problem of this kind with these words in it; AssertionError when it does not come."""

    said: list[str] = []
    sentences: list[str] = []

    def looked() -> bool:
        with contextlib.suppress(OSError):  # no answer in time: the next look counts
            found = gateway.problems()
            said[:] = [p["text"] for p in found]
            texts = [p["text"] for p in found if (p["id"], p["severity"]) == (name, severity)]
            sentences[:] = [text for text in texts if all(word in text for word in words)]
        return bool(sentences)

    began_s = time.monotonic()
    wait_until(looked, lambda: f"the page says {name} with {words}; {said}", within_s)
    print(f"{name} on the page after {time.monotonic() - began_s:.1f} s: {sentences[0]}")
    return sentences[0]


def well(gateway: Gateway) -> Callable[[], bool]:
    """Whether the page names nothing critical."""
    return lambda: not [p for p in gateway.problems() if p["severity"] == "critical"]


def alerting(plant: Plant, name: str, *, firing: bool = FULL, within_s: float = ALERT_S, **labels: str) -> None:
    """An alert with these labels is pending, or, if ``firing``, fires."""

    def there() -> bool:
        return any(
            alert["labels"]["alertname"] == name
            and (alert["state"] == "firing" or not firing)
            and labels.items() <= alert["labels"].items()
            for alert in alerts(plant.prometheus)
        )

    wait_until(there, f"{name} {labels}; {alerts(plant.prometheus)}", within_s)


def doctor_says(checks: list[dict[str, Any]], group: str, name: str, *words: str) -> str:
    """The text of a doctor's check that is not ok, with these words in it."""
    texts = [c["text"] for c in checks if (c["group"], c["name"]) == (group, name) and c["fix"]]
    found = [text for text in texts if all(word in text for word in words)]
    assert found, f"doctor does not say {name} with {words}: {[(c['group'], c['name'], c['text']) for c in checks]}"
    return found[0]


@contextlib.contextmanager
def feeding(site: Site, *topics: str, every_s: float = 0.1, body: bytes = b'{"seq": 1}') -> Iterator[None]:
    """A message to each of these MQTT topics now and then."""
    stop = threading.Event()

    def feed() -> None:
        while not stop.wait(every_s):
            for topic in topics:
                site.broker.call(lambda t=topic: site.broker.broker.publish(Message(t, body, 1, publisher="one")))

    thread = threading.Thread(target=feed, name="feed")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# --- the tests, in this order ---


def test_nothing_is_said_while_nothing_is_wrong(plant: Plant) -> None:
    """A quiet time, and what an operator does every day: a rolling restart, a reload."""
    wait_until(lambda: not plant.gateway.problems(), f"all is well; {plant.gateway.problems()}")
    with Lookout(plant.gateway, plant.prometheus, quiet=not FULL) as lookout:
        passes(QUIET_S)
        plant.gateway.commanded("restart")
        plant.gateway.configure(flow={"linger_max": "30ms"})
        plant.gateway.commanded("reload")
        passes(QUIET_S / 2)
    assert lookout.looks > QUIET_S / 2
    assert not alarms(lookout), lookout.seen


def alarms(lookout: Lookout) -> list[Seen]:
    """What would have got somebody up: critical problems, and alerts that fired."""
    return [seen for seen in lookout.seen if seen.severity == "critical" or seen.severity.startswith("firing")]


def test_one_frozen_broker_of_three(plant: Plant) -> None:
    """It keeps its leaderships, and the others wait for its copies: it alone is named, with its partitions."""
    victim = plant.admin.controller() % 3 + 1
    led = [number for number, leader in plant.admin.leaders("devices").items() if leader == victim]
    with Lookout(plant.gateway, plant.prometheus, quiet=not FULL) as lookout:
        frozen_s = time.monotonic()
        plant.cluster.freeze(victim)
        try:
            names = [f"devices/{number}" for number in led]
            on_page(plant.gateway, "broker-silent", f"Broker {victim} (127.0.0.1:", "it leads", *names)
            checks = doctor(plant.gateway, "--only", "running", "--only", "kafka")
            print(f"doctor was done {time.monotonic() - frozen_s:.1f} s after the freeze")
            doctor_says(checks, "running", "broker-silent", f"Broker {victim} ", *names)
            said = doctor_says(checks, "kafka", "login", "frozen, not dead", f"devices/{led[0]}")
            assert f", {led[1]}" in said
            logins = [check["about"] for check in checks if check["name"] == "login"]
            assert [about.startswith(f"broker {victim} ") for about in logins] == [True], "nobody else is accused"
            alerting(plant, "GatewayBrokerSilent", firing=True, broker=str(victim))
            print(f"the alert fired {time.monotonic() - frozen_s:.1f} s after the freeze")
            assert time.monotonic() - frozen_s < ALERT_S
        finally:
            plant.cluster.thaw(victim)
        wait_until(well(plant.gateway), f"all is well again; {plant.gateway.problems()}")
    accused = {seen.subject for seen in lookout.seen if seen.name.startswith("broker-")}
    assert accused == {f"broker {victim}"}, lookout.seen
    told = {seen.subject for seen in lookout.seen if seen.name.startswith("GatewayBroker")}
    assert told == {f"broker={victim}"}, lookout.seen
    assert not [seen for seen in lookout.seen if "unreachable" in seen.name.lower() and seen.where == "page"]
    plant.admin.wait_in_sync("devices")


def test_a_full_spool_and_a_certificate_that_expires(plant: Plant) -> None:
    gateway, site = plant.other, plant.other_site
    on_page(gateway, "certificate-expires", "mqtt.tls.certificate_file", "expires in 5.0 days", severity="warning")
    alerting(plant, "GatewayCertificateExpires", firing=False, credential="mqtt_certificate", severity="warning")
    doctor_says(doctor(gateway, "--only", "config"), "config", "certificate", "expires in 5.0 days")
    may_write(plant, "other", may=False)
    try:
        noise = random.Random(1).randbytes(50_000)  # does not compress: two mebibytes are soon full
        with feeding(site, "other/x", every_s=0.03, body=noise):
            on_page(gateway, "spool-full", "acknowledges only what Kafka takes", within_s=60)
            alerting(plant, "GatewaySpoolFull")
            doctor_says(doctor(gateway, "--only", "running"), "running", "spool-full", "The spool is full")
    finally:
        may_write(plant, "other", may=True)
    wait_until(
        lambda: site.broker.drained() and gateway.settled(), f"the spool empties; {gateway.status()['spool']}", 90
    )
    assert "spool-full" not in {problem["id"] for problem in gateway.problems()}
    plant.authority.issue("client", left=dt.timedelta(seconds=-60))
    site.broker.call(lambda: [link.transport.abort() for link in list(site.broker.broker.links)])
    on_page(gateway, "certificate-expires", "mqtt.tls.certificate_file", "has expired", within_s=60)
    sentence = on_page(gateway, "mqtt-disconnected", "other-0-0", severity="warning", within_s=60)
    assert re.search("certificate", sentence), sentence
    alerting(plant, "GatewayCertificateExpires", firing=False, severity="critical")
    doctor_says(doctor(gateway, "--only", "config"), "config", "certificate", "expired")


def test_what_is_wrong_with_one_topic_is_said_of_it_alone(plant: Plant) -> None:
    """A right taken away; too few copies in sync; a partition without a leader; devices that send what no route takes;
    a queue that drops; a reader that stopped. All at once, each by its name."""
    admin, gateway = plant.admin, plant.gateway
    victim = admin.controller() % 3 + 1
    read_and_stop(plant)
    singles = [f"single/{number}" for number in range(12)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(feeding(plant.site, "denied/x", "thin/x", *singles))
        may_write(plant, "denied", may=False)
        least_in_sync(plant, "thin", 3)
        plant.cluster.stop_node(victim)  # for good: it could not register again for ten minutes
        on_page(gateway, "acl-refused", "topic denied", "Write")
        on_page(gateway, "partition-silent", "thin/", "min.insync.replicas")
        on_page(gateway, "partition-leaderless", f"single/{victim - 1}")
        on_page(gateway, "consumer-lag", READER, "devices", "nobody is in the group", severity="warning")
        plant.site.broker.burst(20_000)
        on_page(gateway, "emqx-queue-dropping", "full queue", "gateway-")
        with feeding(plant.site, "typed/x", every_s=0.01, body=b'{"kind": "BAD"}'):
            on_page(gateway, "route-stopped", "'typed'", "gateway dlq list")
        on_page(gateway, "dead-letters", "typed-BAD", severity="warning")
        checks = doctor(gateway, *(word for group in OURS for word in ("--only", group)), "--group", READER)
        alerting(plant, "GatewayAclRefused", firing=True, topic="denied")
        alerting(plant, "GatewayPartitionSilent", topic="thin")
        alerting(plant, "GatewayPartitionLeaderless", topic="single")
        alerting(plant, "GatewayRouteStopped", firing=True, route="typed")
        alerting(plant, "GatewayDeadLetters", firing=True)
        alerting(plant, "GatewayEmqxQueueDropping", firing=True)
        assert plant.prometheus.query(f'gateway_consumer_lag_seconds{{group="{READER}",topic="devices"}} > 5')
        if FULL:
            alerting(plant, "GatewayConsumerLag", firing=True, within_s=480, group=READER)

        def accused() -> set[str]:
            silent = [a["labels"] for a in alerts(plant.prometheus) if "Silent" in a["labels"]["alertname"]]
            return {labels.get("topic") or labels["broker"] for labels in silent}

        # Another broker is silent, too, while it gets no time.
        wait_until(
            lambda: accused() <= {"thin", str(victim)}, lambda: f"one alert for one thing, and the broker; {accused()}"
        )
        may_write(plant, "denied", may=True)
        least_in_sync(plant, "thin", 2)
        gone = {"acl-refused", "partition-silent"}
        wait_until(lambda: not gone & {p["id"] for p in gateway.problems()}, f"they go; {gateway.problems()}")
    seen_by_doctor(checks, victim)


def seen_by_doctor(checks: list[dict[str, Any]], victim: int) -> None:
    for name, words in {
        "acl-refused": ("denied",),
        "partition-silent": ("thin/",),
        "partition-leaderless": (f"single/{victim - 1}",),
        "consumer-lag": (READER,),
        "emqx-queue-dropping": ("full queue",),
        "route-stopped": ("typed",),
    }.items():
        doctor_says(checks, "running", name, *words)
    doctor_says(checks, "kafka", "produce", "user 'gateway'", "denied/")
    doctor_says(checks, "kafka", "min_insync", "thin/")
    doctor_says(checks, "kafka", "leaders", f"single/{victim - 1}")
    doctor_says(checks, "emqx", "drops", "gateway-")


def read_and_stop(plant: Plant) -> None:
    """A consumer group reads, commits, and goes. From then on it is watched."""
    with contextlib.closing(plant.admin.consumer(READER, "devices")) as consumer:
        wait_until(lambda: consumer.consume(100, 0.2), "the group reads")
        consumer.commit(asynchronous=False)
    plant.gateway.configure(admin={"watch_groups": [READER], "watch_interval": "2s", "watch_lag": "5s"})
    plant.gateway.commanded("reload")


def may_write(plant: Plant, topic: str, *, may: bool) -> None:
    rights = {AclOperation.ALL: AclPermissionType.ALLOW}
    if not may:
        rights[AclOperation.WRITE] = AclPermissionType.DENY
    set_rights(plant.cluster.bootstrap, topic, rights)


def least_in_sync(plant: Plant, topic: str, copies: int) -> None:
    """Set min.insync.replicas."""
    alter_topic(plant.cluster.bootstrap, topic, "min.insync.replicas", copies)
