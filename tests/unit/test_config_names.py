"""Filters, topic names, placeholders and addresses are judged by the protocols' rules."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from bridge.routing import filters as bridge_filters
from config.errors import ConfigError
from config.loading.load import load
from config.values.addresses import (
    check_headers,
    check_host,
    is_loopback,
    parse_kafka_address,
    parse_ldap_address,
    parse_mqtt_address,
)
from config.values.names import check_kafka_topic, placeholders
from config.values.topic_filters import MqttFilter, disjoint_groups

check_mqtt_filter = TypeAdapter(MqttFilter).validate_python


@pytest.mark.parametrize(("read", "text"), [
    *((check_mqtt_filter, text) for text in ("#", "+", "a", "/", "a/#", "+/+/b", "a//b", "$SYS/#", "ä/+", "/#")),
    *((check_kafka_topic, name) for name in ("a", "devices.telemetry", "A-1_b", "x" * 249, "_one", "...")),
])  # fmt: skip
def test_what_keeps_the_rules_passes(read: Callable[[str], object], text: str) -> None:
    assert read(text) == text


@pytest.mark.parametrize(("read", "text", "word"), [
    (check_mqtt_filter, "", "empty"),
    (check_mqtt_filter, "a/#/b", "last level"),
    (check_mqtt_filter, "a#", "last level"),
    (check_mqtt_filter, "#/", "last level"),
    (check_mqtt_filter, "a/b+", "stands alone"),
    (check_mqtt_filter, "a/+b/c", "stands alone"),
    (check_mqtt_filter, "a\x00b", "NUL"),
    (check_mqtt_filter, "a" * 65_536, "65,535"),
    (check_mqtt_filter, "$share/group/a", "mqtt.share_group"),
    (check_mqtt_filter, "$queue/a", "mqtt.share_group"),
    (check_mqtt_filter, "$exclusive/a", "exclusive"),
    *((check_kafka_topic, name, "1 to 249") for name in ("", ".", "..", "x" * 250, "a/b", "a b", "ä", "a\n")),
    (check_kafka_topic, "${topic}", "1 to 249"),
    (check_kafka_topic, "__consumer_offsets", "Kafka's own"),
    *((placeholders, text, "placeholder") for text in ("${a", "x${", "${a}${b", "${}")),
    (parse_mqtt_address, "broker:1883", "starts with its scheme"),
    (parse_mqtt_address, "mqqt://broker", 'did you mean "mqtt://"'),
    (parse_mqtt_address, "ssl://broker", 'did you mean "mqtts://"'),
    (parse_mqtt_address, "gopher://broker", "one of mqtt, mqtts, ws and wss$"),
    (parse_mqtt_address, "mqtt://", "host is missing"),
    (parse_mqtt_address, "mqtt://:1883", "host is missing"),
    *((parse_mqtt_address, f"mqtt://a:{port}", "1 to 65535") for port in ("0", "65536", "", "x")),
    (parse_mqtt_address, "mqtt://::1", "brackets"),
    (parse_mqtt_address, "mqtt://[::1", "brackets"),
    (parse_mqtt_address, "mqtt://[abc]", "no IPv6"),
    (parse_mqtt_address, "mqtt://a b", "neither a host name"),
    (parse_mqtt_address, "mqtt://-a", "neither a host name"),
    (parse_mqtt_address, "ws://a/mqtt", "websocket_path"),
    (parse_mqtt_address, "mqtt://user:secret@a", "mqtt.password"),
    (parse_kafka_address, "kafka://a:9092", "no scheme"),
    (parse_kafka_address, "a", "names its port"),
    (parse_kafka_address, "a:", "1 to 65535"),
    (parse_kafka_address, "u:secret@a:1", "kafka.sasl"),
    (parse_kafka_address, ":9", "missing"),
    (check_headers, {"X Y": "secret"}, "no name of an HTTP header"),
    *((check_headers, {"X": text}, "control character") for text in ("secret\r\nY: z", "secret\n", "\0")),
    *((check_host, text, "alone") for text in ("http://a", "a:9464", "[::1]", "u:secret@a", "a/b")),
    *((check_host, text, "neither a host name") for text in ("a b", "-a", "*", "a" * 64)),
    (check_host, "", "missing"),
    (parse_ldap_address, "http://a", "starts with its scheme"),
    (parse_ldap_address, "ldap://a:99999", "1 to 65535"),
    (parse_ldap_address, "ldap://a/dc=b", "after the host comes"),
])  # fmt: skip
def test_what_breaks_a_rule_is_refused_with_the_rule_and_no_secret_is_repeated(
    read: Callable[[Any], object], text: object, word: str
) -> None:
    with pytest.raises(ValueError, match=word) as caught:
        read(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["localhost", "kafka-1.example.", "0.0.0.0", "::", "fe80::1%eth0"])
def test_a_host_is_a_name_or_an_address_without_brackets(text: str) -> None:
    assert check_host(text) == text


_LEVELS = st.lists(st.sampled_from(["a", "b", "$x", "+", ""]), min_size=1, max_size=4)
_FILTERS = st.builds(
    lambda levels, rest: "/".join([*levels, "#"]) if rest else "/".join(levels), _LEVELS, st.booleans()
).filter(bool) | st.just("#")


@given(st.lists(_FILTERS, max_size=6), st.sampled_from([1, 3, 8]))
def test_disjoint_groups_are_those_that_the_sessions_get(texts: list[str], sessions: int) -> None:
    cover = bridge_filters.minimal_cover((text, 1) for text in texts)
    shares = [share for share in bridge_filters.split_disjoint(cover, sessions) if share]
    assert min(len(disjoint_groups(texts)), sessions) == len(shares), (texts, cover)


def test_placeholders_are_listed_in_order() -> None:
    assert placeholders("${a}-x-${b[1]}$") == ["a", "b[1]"]


@pytest.mark.parametrize(("text", "parts"), [
    ("mqtt://broker", ("mqtt", "broker", 1883)),
    ("MQTTS://broker.example.:8884/", ("mqtts", "broker.example.", 8884)),
    ("ws://10.0.0.1", ("ws", "10.0.0.1", 8083)),
    ("wss://[::1]", ("wss", "::1", 8084)),
    ("mqtt://[fe80::1]:1", ("mqtt", "fe80::1", 1)),
    ("mqtt://under_score:65535", ("mqtt", "under_score", 65535)),
])  # fmt: skip
def test_an_mqtt_address_has_its_parts(text: str, parts: tuple[str, str, int]) -> None:
    address = parse_mqtt_address(text)
    assert (address.scheme, address.host, address.port) == parts
    assert parse_mqtt_address(str(address)) == address


def test_addresses_of_kafka_and_of_directories_have_their_parts() -> None:
    assert parse_kafka_address("broker:9092") == ("broker", 9092)
    assert parse_kafka_address("[::1]:9092") == ("::1", 9092)
    assert parse_ldap_address("ldap://a") == (False, "a", 389)
    assert parse_ldap_address("ldaps://[::1]") == (True, "::1", 636)
    assert parse_ldap_address("ldaps://a:1636") == (True, "a", 1636)


def test_loopback_is_known_without_asking_a_name_server() -> None:
    assert all(map(is_loopback, ["localhost", "LOCALHOST", "broker.localhost", "127.0.0.1", "127.9.9.9", "::1"]))
    assert not any(map(is_loopback, ["broker", "10.0.0.1", "::2", "localhost.example"]))


@pytest.mark.parametrize("name", ["data_dir", "stream.checkpoint", "stream.lake.path"])
def test_an_empty_text_is_not_the_current_folder(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}.*an empty text names no folder"):
        load(None, environ={}, overrides={name: ""})
    assert load(None, environ={}, overrides={name: "."}).settings
