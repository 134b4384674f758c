"""Settings change while messages flow: nobody is disconnected, nothing is lost, no order either, and what cannot be
taken changes nothing."""

import json
import math
import os
import signal
from typing import Any

import pytest

from tests.chaos.case import QUEUE, Case, in_order
from tests.chaos.fixtures import MakeCase
from tests.chaos.harness import FULL, Gateway
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ONE_PARTITION = {"topics": {"create": True, "partitions": 1, "replication": 1}}


def route(topic: str, name: str = "telemetry", **more: Any) -> dict[str, Any]:
    return {"name": name, "filters": ["devices/#"], "topic": topic, **more}


def reload(gateway: Gateway, *words: str, **tables: Any) -> tuple[int, str]:
    gateway.configure(**tables)
    return gateway.command("reload", *words)


def reloaded(gateway: Gateway, **tables: Any) -> str:
    """What a reload that succeeds says."""
    status, said = reload(gateway, **tables)
    assert status == 0, said + gateway.tail()
    return said


def test_routes_limits_and_interceptors_change_under_load(make_case: MakeCase, unique: str) -> None:
    """An EMQX at its defaults, 2,000 msg/s over four sessions of two workers; into one partition, which shows the order
    of every device whatever its key."""
    tables = {"kafka": ONE_PARTITION, "routes": [route(unique)]}
    case = make_case(in_order(QUEUE), workers=2, mqtt={"sessions": 2}, **tables)
    gateway = case.gateway
    absences = case.broker.watch_absences()
    connects = gateway.metric("gateway_mqtt_connects_total")
    pids = gateway.pids()
    case.broker.start_load(2000)
    first = {"name": "first", "filters": ["devices/+/telemetry"], "topic": unique}
    steps: list[dict[str, Any]] = [
        {"flow": {"linger_max": "50ms", "route_cache_entries": 20}, "log": {"level": "debug"}},
        {"routes": [route(unique, key="${topic[1]}")]},
        {"routes": [{**first, "key": "${payload.device}"}, route(unique)]},
        {"routes": [route(unique, interceptors=[{"use": "headers", "add": {"site": "north"}}])]},
        {},
        {"routes": [route(unique, name="other", key="")], "dead_letter": {"max_share": 0.5}},
        {"routes": [route(unique)], "flow": {"linger_max": "20ms", "route_cache_entries": 1000}},
    ]
    for step in steps * (4 if FULL else 1):
        said = reloaded(gateway, **step)
        assert ("taken by all 2 running workers, no session disconnected." if step else "No setting") in said
    case.finish(copies=0)
    assert not absences, "no session was away"
    assert gateway.metric("gateway_mqtt_connects_total") == connects
    assert gateway.pids() == pids
    assert gateway.samples("gateway_config_reload_success") == {"": 1}
    config = gateway.status()["config"]
    assert config["last_reload"]["ok"]
    assert config["file"].endswith("gateway.toml")


def test_filters_change_under_load(make_case: MakeCase, unique: str) -> None:
    """Wider, narrower, others: subscribed before what is left, so that nothing is published to nobody. While a message
    matches both filters it comes twice."""
    case = make_case(in_order(QUEUE), workers=1, mqtt={"sessions": 1}, routes=[route(unique)])
    absences = case.broker.watch_absences()
    case.broker.start_load(1000)
    for filters in (["devices/+/telemetry"], ["devices/+/+", "sites/#"], ["+/+/telemetry"], ["devices/#"]):
        reloaded(case.gateway, routes=[{"name": "telemetry", "filters": filters, "topic": unique}])
        (session,) = subscribed(case)
        assert session == [f"$share/gateway/{text}" for text in filters]
    case.finish(copies=math.inf)
    assert not absences


def subscribed(case: Case) -> list[list[str]]:
    """The filters of each session."""
    return case.broker.call(lambda: [list(one.filters) for one in case.broker.broker.sessions.values()])


def test_what_cannot_be_taken_changes_nothing(make_case: MakeCase, unique: str) -> None:
    """A file that cannot be read, a template that cannot be right, a topic that is not there, settings that need a
    restart, a broker that refuses the new filter: each is named, and the messages go where they went."""
    case = make_case(
        in_order(QUEUE), start=False, workers=2, mqtt={"sessions": 1}, kafka=ONE_PARTITION,
        routes=[route(unique)],
    )  # fmt: skip
    gateway, broker = case.gateway, case.broker
    status, said = gateway.command("reload")
    assert status == 4, said
    gateway.start()
    absences = broker.watch_absences()
    broker.start_load(500)

    status, said = reload(gateway, routes=[route(unique, key="${topc}")])
    assert status == 78
    assert "did you mean ${topic}" in said
    gateway.process.signal(signal.SIGHUP)
    wait_until(lambda: gateway.samples("gateway_config_reload_success") == {"": 0}, "the metric says it failed")
    assert not gateway.status()["config"]["last_reload"]["ok"]

    elsewhere = route(f"{unique}-absent")
    status, said = reload(gateway, routes=[elsewhere], mqtt={"keepalive": "40s"}, kafka={"compression": "none"})
    assert status == 78
    assert "mqtt.keepalive, kafka.compression cannot change while the workers run" in said
    assert '! mqtt.keepalive: "30s" → "40s"' in said
    assert gateway.status()["workers"][0]["routes"].keys() == {"telemetry"}

    gateway.configure(mqtt={"keepalive": "30s"}, kafka={"compression": "zstd"})
    status, said = reload(gateway, "--dry-run")
    assert status == 0, said
    assert f"Topic {unique}-absent would be made." in said
    assert f'  routes[telemetry].topic: "{unique}" → "{unique}-absent"' in said

    broker.call(lambda: setattr(broker.broker.rules, "refuse_subscribe", 0x87))
    status, said = reload(gateway, routes=[{**elsewhere, "topic": unique, "filters": ["devices/#", "more/#"]}])
    assert status == 1, said
    assert "refused to subscribe" in said
    broker.call(lambda: setattr(broker.broker.rules, "refuse_subscribe", None))
    assert subscribed(case) == [["$share/gateway/devices/#"]] * 2

    status, said = reload(gateway, "--partial", "--json", routes=[route(unique, key="")], mqtt={"keepalive": "50s"})
    assert status == 5, said
    assert "mqtt.keepalive" in json.loads(said)["sentence"]
    case.finish(copies=0)
    assert not absences


@pytest.mark.parametrize("workers", [1, 0], ids=["killed afterwards", "without a supervisor"])
def test_a_worker_takes_the_new_settings(workers: int, make_case: MakeCase, unique: str) -> None:
    """One that dies afterwards is started with them."""
    gateway = make_case(workers=workers, mqtt={"sessions": 1}, routes=[route(unique)]).gateway
    reloaded(gateway, routes=[route(unique, name="renamed")])
    assert gateway.samples("gateway_config_reload_success") == {"": 1}
    if workers:
        (pid,) = gateway.pids()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gateway.pids() not in ([pid], [None]), "another is started")
        gateway.wait_ready()
    assert "renamed" in gateway.status()["routes"]
    assert gateway.status()["config"]["last_reload"]["ok"]
    gateway.stop()
