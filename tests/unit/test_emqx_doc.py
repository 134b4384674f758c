"""docs/emqx.md says what is: its settings load, its ACL does what it says, its names exist."""

import re
import textwrap
import tomllib
from pathlib import Path

import pytest

from bridge import wire
from bridge.commands.reading import Presence, read_delivery, read_presence
from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.routing.router import Router
from config.loading.load import load
from config.values.topic_filters import covers
from gateway.base.lookout_metrics import LEGS
from tests.brokers.emqx_conf import flatten, read_hocon
from tests.brokers.emqx_rules import Client, judge, parse_acl_conf

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "emqx.md").read_text(encoding="utf-8")


def blocks() -> list[str]:
    found = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", PAGE, re.MULTILINE)
    return [textwrap.dedent(block).strip() + "\n" for block in found]


def test_its_settings_load_and_are_of_one_mind(tmp_path: Path) -> None:
    tables = [block for block in blocks() if block.startswith("[") and "partitioned" not in block]
    assert len(tables) == 4
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    file = tmp_path / "gateway.toml"
    file.write_text(re.sub(r"/run/secrets/[a-z-]+", str(secret), "\n".join(tables)))
    loaded = load(file, environ={})
    assert loaded.settings.emqx.api_key == "gateway"
    assert [route.name for route in loaded.settings.routes] == ["canary", "presence", "acked", "device-presence"]
    assert loaded.warnings == ()


def test_its_acl_lets_the_gateway_see_who_comes_and_goes_and_nobody_else() -> None:
    lines = next(block for block in blocks() if block.startswith("{allow"))
    rules = parse_acl_conf(lines + "{allow, all}.\n")

    def may(username: str, topic: str) -> str:
        return judge(rules, Client(username, "c", "10.0.0.1"), "subscribe", topic, 1, retain=False)

    assert may("gateway", "$SYS/brokers/+/clients/#") == "allow"
    assert may("device", "$SYS/brokers/+/clients/#") == "deny"
    assert may("gateway", "$SYS/#") == "deny"
    assert may("gateway", "#") == "deny"


def test_what_it_wants_of_emqx_is_what_deploy_sets(tmp_path: Path) -> None:
    text = (ROOT / "deploy/emqx/emqx.conf").read_text()
    file = tmp_path / "emqx.conf"
    file.write_text(re.sub(r"^.*include required.*$", "", text, flags=re.MULTILINE))
    values = flatten(read_hocon(file))
    wanted = dict(re.findall(r"^\| `([a-z_.]+)` \| [^|]+ \| ([^|]+) \|", PAGE, re.MULTILINE))
    compared = {"mqtt.max_inflight", "mqtt.max_mqueue_len", "force_shutdown.max_heap_size"}
    compared.add("mqtt.shared_subscription_strategy")
    for name in compared:
        assert str(values[name]) in wanted[name].replace(",", ""), name


def test_durable_sessions_are_one_configuration_at_both_ends(tmp_path: Path) -> None:
    (table,) = [block for block in blocks() if "partitioned" in block]
    file = tmp_path / "gateway.toml"
    file.write_text(table)
    loaded = load(file, environ={})
    assert loaded.warnings == ()
    settings = loaded.settings
    router = Router(settings.routes, instance=settings.instance)
    shares = router.subscriptions(
        "partitioned", settings.mqtt.sessions, share_group=settings.mqtt.share_group, group=""
    )
    assert all(shares), "each session has a filter"
    assert not [one.filter for share in shares for one in share if one.filter.startswith("$share/")]

    (lines,) = [block for block in blocks() if block.startswith("durable_sessions")]
    text = (ROOT / "deploy/emqx/emqx.conf").read_text()
    emqx = tmp_path / "emqx.conf"
    emqx.write_text(re.sub(r"^.*include required.*$", "", text, flags=re.MULTILINE) + lines)
    values = flatten(read_hocon(emqx))
    assert values["durable_sessions.enable"] is True
    assert values["cluster.discovery_strategy"] == "singleton", "EMQX refuses to start with any other"


def test_its_legs_are_those_there_are() -> None:
    table = PAGE.partition("| leg | the message |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `([a-z]+)` \|", table, re.MULTILINE)) == LEGS


# --- commands.conf --------------------------------------------------------------------------------
RULES = read_hocon(ROOT / "deploy/emqx/commands.conf")["rule_engine"]["rules"]
DELIVERED, CAME, SUBSCRIBED = "gateway_command_acked", "gateway_presence", "gateway_subscribed"


def republished(rule: str, **values: str) -> LoggedRecord:
    """The record that the page's route makes of what a rule publishes."""
    (action,) = RULES[rule]["actions"]
    assert action["function"] == "republish"
    topic, payload = (
        re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], action["args"][name]) for name in ("topic", "payload")
    )
    text = next(block for block in blocks() if block.startswith("[") and "delivered_by" in block)
    routes = tomllib.loads(text)["routes"]
    (route,) = [route for route in routes if any(covers(filter_, topic) for filter_ in route["filters"])]
    assert route["name"] == ("acked" if rule == DELIVERED else "device-presence")
    device = topic.split("/")[int(re.fullmatch(r"\$\{topic\[(\d)\]\}", route["device"])[1])]  # type: ignore[index]
    headers = ((wire.MQTT_TOPIC, topic.encode()), (wire.GATEWAY_DEVICE, device.encode()))
    return LoggedRecord(Place(route["topic"], 0, 7), 0, None, payload.encode(), headers)


def test_a_device_s_acknowledgement_is_read_as_a_delivery() -> None:
    record = republished(DELIVERED, token="abc.def", clientid="pump-7", timestamp="1795600000000")
    delivery = read_delivery(record)
    assert (delivery.token, delivery.device) == ("abc.def", "pump-7")


@pytest.mark.parametrize(("rule", "event", "is_online"), [
    (CAME, "client.connected", True), (CAME, "client.disconnected", False), (SUBSCRIBED, "session.subscribed", None),
])  # fmt: skip
@pytest.mark.parametrize("device", ["pump-7", "0", "up"])
def test_who_comes_and_goes_is_read_as_presence(rule: str, event: str, is_online: bool | None, device: str) -> None:
    """Also of a device whose name is a word for it."""
    found = read_presence(republished(rule, clientid=device, event=event, timestamp="1795600000000"))
    assert found == Presence(device, is_online)


def test_only_the_device_of_the_topic_is_asked_about() -> None:
    """A monitor on devices/# acknowledges a command as well, and is not its device."""
    for name in (DELIVERED, SUBSCRIBED):
        assert "clientid = nth(2, split(topic, '/'))" in RULES[name]["sql"]
    assert "topic =~ 'devices/+/req/#'" in RULES[DELIVERED]["sql"]
    for rule in RULES.values():
        assert rule["actions"][0]["args"]["qos"] == 1, "a report that is lost is a command that times out"
