"""A Telegraf configuration with ``inputs.mqtt_consumer`` and ``outputs.kafka`` as settings of this gateway.

Telegraf reads a payload into metrics and writes metrics; this gateway carries payloads as they are. So the import
takes over addresses, topics and keys, and reports what Telegraf did to the payload.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from itertools import combinations, product
from typing import Any, Final

from bridge.routing.filters import split_share
from config.values.topic_filters import covers, intersection
from gateway.tools.migration.findings import Imported, ImportError_
from gateway.tools.migration.routes import arranged, usable
from gateway.tools.migration.telegraf_output import put_output, put_tls, put_username

_SCHEMES: Final = {"tcp": "mqtt", "ssl": "mqtts", "tls": "mqtts"}  # other schemes have the same names
_PASSWORD_FILE: Final = "/run/secrets/mqtt-password"  # noqa: S105 - a file's name
_KNOWN: Final = frozenset(
    "servers topics topic_tag qos connection_timeout max_undelivered_messages persistent_session client_id username "  # noqa: SIM905
    "password tls_ca tls_cert tls_key tls_enable tls_key_pwd insecure_skip_verify data_format topic_parsing keepalive "
    "ping_timeout client_trace tls_server_name alias".split()
)
_LOGIN: Final = ("username", "password", "tls_ca", "tls_cert", "tls_key", "tls_server_name", "insecure_skip_verify")
_SECONDS: Final = re.compile(r"\d+(?:\.\d+)?")
_USERINFO: Final = re.compile(r"(?<=://)[^/]*@|^[^/]*@")

_WITHIN: Final = re.compile(r"[$@]\{|.\$[A-Za-z_]")  # a variable, and no topic such as $share/…


def import_telegraf(text: str) -> Imported:
    """The settings for Telegraf's way from MQTT to Kafka. Raises ImportError_ without one."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ImportError_(f"This is no TOML: {error}") from None
    inputs = _plugins(document, "inputs", "mqtt_consumer")
    outputs = _plugins(document, "outputs", "kafka")
    if not inputs or not outputs:
        raise ImportError_(
            "There is no way from MQTT to Kafka in this file: it takes [[inputs.mqtt_consumer]] and [[outputs.kafka]]."
        )
    imported = Imported()
    taken = _same_broker(imported, inputs)
    _put_broker(imported, taken)
    routes: list[dict[str, Any]] = []
    tags: list[dict[str, str]] = []
    topic_tags: list[str] = []
    for one in taken:
        for route, known in _routes(imported, one):
            route["name"] = _route_name(one, len(routes))
            routes.append(route)
            tags.append(known)
            topic_tags.append(str(one.get("topic_tag", "topic")))
    if not routes:
        raise ImportError_("No topic of inputs.mqtt_consumer can be subscribed to.")
    put_output(imported, outputs[0], routes, tags, topic_tags)
    for _ in outputs[1:]:
        imported.note(
            "lost", f"outputs.kafka, {len(outputs)} of them",
            "Telegraf writes every metric to each; a message takes one way.",
            "Feed the others by a second gateway, with another instance and mqtt.share_group.",
        )  # fmt: skip
    routes = arranged(imported, routes)
    imported.settings["routes"] = routes
    _note_overlaps(imported, routes)
    for plugin, table in (*(("mqtt_consumer", one) for one in taken), ("outputs.kafka", outputs[0])):
        _note_variables(imported, plugin, table)
    _note_formats(imported, taken, outputs[0])
    _note_rest(imported, document)
    return imported


def _plugins(document: Mapping[str, Any], kind: str, name: str) -> list[dict[str, Any]]:
    group = document.get(kind)
    found = group.get(name) if isinstance(group, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


# --- the MQTT side


def _same_broker(imported: Imported, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The inputs with the servers of the first one; the others become findings."""
    first = inputs[0].get("servers")
    taken = [one for one in inputs if one.get("servers") == first]
    for one in inputs:
        if one not in taken:
            imported.note(
                "lost", f"inputs.mqtt_consumer with servers {_without_login(one.get('servers'))}",
                "A gateway has one MQTT broker.", "Import it for a second gateway.",
            )  # fmt: skip
    return taken


def _put_broker(imported: Imported, inputs: list[dict[str, Any]]) -> None:
    first = inputs[0]
    servers = [str(one) for one in first.get("servers", ["tcp://127.0.0.1:1883"])]
    imported.put("mqtt.addresses", [_address(one) for one in servers])
    if any(_USERINFO.search(one) for one in servers):
        imported.note(
            "check", "mqtt_consumer: servers with a user", "User and password have settings of their own here.",
            "Set mqtt.username, and mqtt.password_file.",
        )  # fmt: skip
    if first.get("username"):
        put_username(imported, "mqtt_consumer: username", str(first["username"]), "mqtt.username")
    if first.get("password"):
        imported.password("mqtt.password", _PASSWORD_FILE)
    put_tls(imported, "mqtt_consumer", first, "mqtt")
    for one in inputs[1:]:
        if other := sorted(name for name in _LOGIN if one.get(name) != first.get(name)):
            imported.note(
                "lost", f"mqtt_consumer for {', '.join(map(str, one.get('topics', [])))}: {', '.join(other)}",
                "A gateway has one login at the broker, which is that of the first input.",
                "Give that user the right to these topics, or import this input for a second gateway.",
            )  # fmt: skip
    for theirs, ours in (("connection_timeout", "mqtt.connect_timeout"), ("keepalive", "mqtt.keepalive")):
        if theirs in first:
            imported.put(ours, _duration(first[theirs]))
    _put_window(imported, inputs)
    ids = sorted({str(one["client_id"]) for one in inputs if one.get("client_id")})
    if ids:
        imported.note(
            "check", f"mqtt_consumer: client_id {', '.join(ids)}",
            "Client ids are made of instance, worker and session here. A persistent session under the old id stays at "
            "the broker and goes on collecting.",
            "Let Telegraf read it to its end, then end that session (docs/migration.md).",
        )  # fmt: skip
    if not all(one.get("persistent_session") for one in inputs):
        imported.note(
            "differs", "mqtt_consumer: persistent_session = false",
            "Sessions are persistent here, so that a restart loses nothing.", "mqtt.persistent = false undoes it.",
        )  # fmt: skip
    for one in inputs:
        for name in sorted(set(one) - _KNOWN):
            why = "There is no such setting here: metrics are not filtered or changed by it."
            imported.note("lost", f"mqtt_consumer: {name}", why)


def _put_window(imported: Imported, inputs: list[dict[str, Any]]) -> None:
    windows = [int(one["max_undelivered_messages"]) for one in inputs if "max_undelivered_messages" in one]
    if windows:
        imported.put("mqtt.receive_maximum", min(65_535, max(1, *windows)))
        imported.note(
            "differs", f"mqtt_consumer: max_undelivered_messages = {max(windows)}",
            "It is mqtt.receive_maximum here: the broker itself keeps to it (MQTT 5), for each session.",
        )  # fmt: skip


def _without_login(servers: Any) -> str:
    """Addresses without a login, which may contain a password."""
    return ", ".join(_USERINFO.sub("", str(one)) for one in (servers if isinstance(servers, list) else [servers]))


def _address(text: str) -> str:
    scheme, found, rest = _USERINFO.sub("", text).partition("://")
    return f"{_SCHEMES.get(scheme.lower(), scheme.lower())}://{rest}" if found else f"mqtt://{text}"


def _duration(value: Any) -> str:
    text = str(value)
    return f"{text}s" if _SECONDS.fullmatch(text) else text


def _routes(imported: Imported, one: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """A route for each set of tags from topics, with these tags as templates by name."""
    qos = int(one.get("qos", 0))
    if qos == 0:
        imported.note(
            "differs",
            "mqtt_consumer: qos = 0",
            "The route subscribes with QoS 1: QoS 0 loses messages at every break.",
            "routes[].qos = 0 undoes it. Devices that publish with QoS 0 are not helped by either.",
        )
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for text in _filters(imported, one):
        groups.setdefault(tuple(_topic_tags(imported, one, text).items()), []).append(text)
    return [
        ({"name": "", "filters": filters, "topic": "", "qos": max(1, qos)}, dict(tags))
        for tags, filters in groups.items()
    ]


def _route_name(one: dict[str, Any], number: int) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(one.get("alias") or "telegraf"))[:58]
    return name if number == 0 else f"{name}-{number + 1}"


def _filters(imported: Imported, one: dict[str, Any]) -> list[str]:
    """The topic filters of an input. Also sets mqtt.share_group by a shared one."""
    filters = []
    for topic in one.get("topics", []):
        group, text = split_share(str(topic))
        if not usable(imported, f"mqtt_consumer: topic {topic}", text):
            continue
        if group is not None:
            standing = imported.settings.get("mqtt", {}).get("share_group")
            if standing not in {None, group}:
                imported.note(
                    "lost", f"mqtt_consumer: topic {topic}", f"A gateway has one share group, which is {standing}."
                )
            imported.put("mqtt.share_group", standing or group)
            imported.note(
                "check",
                f"mqtt_consumer: topic {topic}",
                f"The group {group} is taken over: while Telegraf runs beside the gateway, they share its messages.",
                "To run both side by side, give the gateway another mqtt.share_group first.",
            )
        filters.append(text)
    return list(dict.fromkeys(filters))


def _topic_tags(imported: Imported, one: dict[str, Any], text: str) -> dict[str, str]:
    """The tags that topic_parsing makes of this filter's topic levels: template by tag."""
    tags: dict[str, str] = {}
    for rule in one.get("topic_parsing", []):
        for kind in ("measurement", "fields"):
            if rule.get(kind):
                imported.note(
                    "lost",
                    f"mqtt_consumer: topic_parsing, {kind} = {rule[kind]}",
                    "There are no measurements and fields here.",
                    "A level of the topic can be a header or a JSON field: ${topic[n]} with headers or `fields`.",
                )
        wanted = str(rule.get("topic", ""))
        named = {
            name: level for level, name in enumerate(str(rule.get("tags", "")).split("/")) if name not in {"", "_"}
        }
        if not named:
            continue
        if not covers(wanted, text):
            if intersection(wanted, text) is not None:
                imported.note(
                    "lost",
                    f"mqtt_consumer: topic_parsing of {wanted}",
                    f"Only some topics of {text} have these levels, and a route treats all of its topics alike.",
                    f"Write a route for {wanted} above, with headers from ${{topic[n]}}.",
                )
            continue
        tags |= {name: f"${{topic[{level}]}}" for name, level in named.items()}
        imported.note(
            "differs",
            f"mqtt_consumer: topic_parsing, tags {', '.join(named)}",
            f"They become record headers, from the same levels of the topics of {text}.",
        )
    return tags


# --- findings


def _note_overlaps(imported: Imported, routes: list[dict[str, Any]]) -> None:
    for first, second in combinations(routes, 2):
        if any(intersection(one, other) for one, other in product(first["filters"], second["filters"])):
            imported.note(
                "differs", f"routes {first['name']} and {second['name']}",
                "Their filters overlap: Telegraf read such a message twice, here it takes the first route.",
            )  # fmt: skip


def _note_variables(imported: Imported, plugin: str, table: Mapping[str, Any]) -> None:
    """Report texts in which Telegraf puts a variable's value. Names and passwords have findings of their own."""
    for name, value in table.items():
        texts = [_without_login(one) for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
        found = [text for text in texts if _WITHIN.search(text)]
        if found and not name.endswith(("username", "password", "token", "pwd")):
            imported.note(
                "check", f"{plugin}: {name} {', '.join(found)}",
                "Telegraf puts a variable's value there; here the text was taken as it stands.",
                "Write the value in its place.",
            )  # fmt: skip


def _note_formats(imported: Imported, inputs: list[dict[str, Any]], output: dict[str, Any]) -> None:
    formats = sorted({str(one.get("data_format", "influx")) for one in inputs})
    written = str(output.get("data_format", "influx"))
    imported.note(
        "lost", f"data_format {', '.join(formats)} → {written}",
        f"Telegraf reads payloads as {', '.join(formats)} and writes metrics as {written}, with its own names, tags "
        "and timestamps. Here a record's value is the payload as the device sent it: consumers change.",
        "Read the payload downstream (docs/streaming.md), or make the format in an interceptor of your own.",
    )  # fmt: skip
    imported.note("note", "topic_tag", "The MQTT topic stands in the header mqtt.topic of every record.")


def _note_rest(imported: Imported, document: Mapping[str, Any]) -> None:
    for kind in ("processors", "aggregators"):
        for name in document.get(kind, {}):
            imported.note(
                "lost", f"{kind}.{name}", "Metrics are not changed on the way: there are none.",
                "See docs/interceptors.md for what can be done to a message, and docs/streaming.md for sums and means.",
            )  # fmt: skip
    for kind, own in (("inputs", "mqtt_consumer"), ("outputs", "kafka")):
        for name in document.get(kind, {}):
            if name != own:
                imported.note("note", f"{kind}.{name}", "It has nothing to do with this way and stays in Telegraf.")
    agent = document.get("agent", {})
    for name in ("metric_batch_size", "metric_buffer_limit", "flush_interval"):
        if name in agent:
            imported.note(
                "differs", f"agent: {name}",
                "Nothing is collected for an interval here: batches follow the load, and what Kafka does not take "
                "goes to the spool on disk, where Telegraf drops the oldest metric of its buffer.",
            )  # fmt: skip
    if document.get("global_tags"):
        imported.note(
            "lost", f"global_tags {', '.join(document['global_tags'])}", "Nothing is added to records unasked.",
            'A constant header does the same: routes[].headers = { site = "north" }.',
        )  # fmt: skip
