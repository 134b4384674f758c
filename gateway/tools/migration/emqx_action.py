"""EMQX's Kafka action as a route, and what its producer is set to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from bridge.wire import RESERVED_PREFIXES
from config.settings import SpoolSettings
from gateway.tools.migration.emqx_words import Words, WordsError
from gateway.tools.migration.findings import ACKS

if TYPE_CHECKING:
    from gateway.tools.migration.emqx_sql import Statement
    from gateway.tools.migration.findings import Imported

_PAYLOAD: Final = ("${payload}", "${.payload}")
_ENVELOPE: Final = ("${.}", "")
_CODECS: Final = {"no_compression": "none", "snappy": "snappy", "gzip": "gzip"}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)B?", re.IGNORECASE)
_POWERS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def put_action(
    imported: Imported,
    route: dict[str, Any],
    action: dict[str, Any],
    words: Words,
    statement: Statement,
    device: str | None,
) -> None:
    """Fill in ``route``, which has name and filters, and note what the action has besides."""
    name = f"action {action['name']}"
    parameters = action["parameters"]
    message = parameters.get("message", {})
    if device is not None:
        route["device"] = device
    _put_topic(imported, name, route, str(parameters.get("topic", "")), words)
    _put_key(imported, name, route, str(message.get("key", "${.clientid}")), words, parameters)
    _note_value(imported, name, str(message.get("value", "${.}")), statement)
    if message.get("timestamp", "${.timestamp}") not in {"${.timestamp}", "${timestamp}"}:
        imported.note(
            "lost", f"{name}: message.timestamp {message['timestamp']}",
            "A record's timestamp is here when the gateway received the message.",
            "Read the device's time from the payload downstream.",
        )  # fmt: skip
    _put_headers(imported, name, route, parameters, words)
    _put_producer(imported, name, parameters)
    _put_buffer(imported, name, parameters.get("buffer", {}))
    if action.get("fallback_actions"):
        imported.note(
            "differs", f"{name}: fallback_actions", "What can never be written goes to the dead-letter topic here.",
            "See docs/dead-letters.md.",
        )  # fmt: skip


def _put_topic(imported: Imported, name: str, route: dict[str, Any], topic: str, words: Words) -> None:
    try:
        route["topic"] = words.template(topic)
    except WordsError as error:
        route["topic"] = re.sub(r"[^A-Za-z0-9._-]+", "-", route["name"])
        imported.note(
            "lost", f"{name}: topic {topic}", f"{error.what} is not known here: {error.why}.",
            f"The route writes to {route['topic']} instead: correct it.",
        )  # fmt: skip
    if "${" in route["topic"]:
        imported.note(
            "check", f"{name}: topic {topic}", "Devices choose the topic's name; up to 100 topics are made so.",
            "Narrow allowed_topics, and set max_topics.",
        )  # fmt: skip


def _put_key(
    imported: Imported, name: str, route: dict[str, Any], key: str, words: Words, parameters: dict[str, Any]
) -> None:
    strategy = parameters.get("partition_strategy", "random")
    try:
        route["key"] = words.template(key)
    except WordsError as error:
        route["key"] = "${topic}"
        imported.note(
            "lost", f"{name}: key {key}",
            f"{error.what} is not known here: {error.why}. The key is the MQTT topic instead.",
            "If the topic or the payload names the device, say where: --device '${topic[1]}', which then is the key.",
        )  # fmt: skip
    if strategy == "key_dispatch":
        imported.note(
            "differs", f"{name}: partition_strategy = key_dispatch",
            "EMQX chooses the partition by Erlang's phash2 of the key, here it is murmur2, as Java's clients do: a "
            "key's records move to another partition, and joins by partition with what EMQX wrote no longer hold. "
            "Joins with Java producers begin to.",
            "Switch over with a new topic, or let consumers read the old one to its end first (docs/migration.md).",
        )  # fmt: skip
    elif route["key"]:
        imported.note(
            "differs", f"{name}: partition_strategy = {strategy}",
            "EMQX spreads records over partitions whatever their key; here the key decides, so that its records keep "
            "their order, and a busy key fills one partition.",
            'With key = "" records are spread as before, and have no key.',
        )  # fmt: skip


def _note_value(imported: Imported, name: str, value: str, statement: Statement) -> None:
    """Report what EMQX would write by the template ``value`` and the rule's SELECT, and a record does not have here."""
    computed = [one.text for one in statement.selected if one.field is None and one.name != "*"]
    if value in _PAYLOAD:
        made = [
            one.text
            for one in statement.selected
            if one.name.split(".")[0] == "payload" and (one.field is None or one.field.path != ("payload",))
        ]
        if made:
            imported.note(
                "lost", f"{name}: value {value}, SELECT {', '.join(made)}",
                "EMQX writes what the rule has made of the payload. Here a record's value is the payload as it came.",
                "An interceptor of your own can make it (docs/interceptors.md), or `fields` for JSON.",
            )  # fmt: skip
            return
        if computed:
            imported.note("note", f"SELECT {', '.join(computed)}", f"Computed, but {name} writes the payload alone.")
        return
    if value in _ENVELOPE:
        shown = ", ".join(one.text for one in statement.selected)
        imported.note(
            "lost", f"{name}: value {value or '(empty)'}, SELECT {shown}",
            "EMQX writes one JSON object of everything selected, the payload in it as text. Here a record's value is "
            "the payload as it came, and what is around it stands in headers (mqtt.topic and others): consumers "
            "change.",
            "Set the action's value to ${payload} first and move the consumers, then the bridge. Fields can be added "
            "to a JSON payload by the interceptor `fields`.",
        )  # fmt: skip
    else:
        imported.note(
            "lost", f"{name}: value {value}",
            "Values are not made from templates here: a record's value is the payload.",
            "An interceptor of your own can make them (docs/interceptors.md), or `fields` for JSON.",
        )  # fmt: skip
    for text in computed:
        imported.note(
            "lost", f"SELECT {text}", "Nothing is computed here.", "An interceptor of your own, or the stream job, can."
        )


def _put_headers(
    imported: Imported, name: str, route: dict[str, Any], parameters: dict[str, Any], words: Words
) -> None:
    if parameters.get("kafka_headers"):
        imported.note(
            "differs", f"{name}: kafka_headers {parameters['kafka_headers']}",
            "MQTT 5 properties become headers of their own (mqtt.content_type, mqtt.user.NAME, …), not one a name.",
            "docs/routing.md lists the names; the interceptor `headers` renames them.",
        )  # fmt: skip
    headers: dict[str, str] = {}
    for one in parameters.get("kafka_ext_headers") or ():
        key, value = str(one.get("kafka_ext_header_key", "")), str(one.get("kafka_ext_header_value", ""))
        try:
            headers[_header_name(key)] = words.template(value)
        except WordsError as error:
            imported.note("lost", f"{name}: header {key} = {value}", f"{error.what}: {error.why}.")
    if headers:
        route["headers"] = headers
    if parameters.get("kafka_header_value_encode_mode") == "json":
        imported.note(
            "differs", f"{name}: kafka_header_value_encode_mode = json", "Header values are plain text here, not JSON."
        )


def _header_name(key: str) -> str:
    if "${" in key:
        raise WordsError(key, "a header's name is fixed here")
    if key.startswith(RESERVED_PREFIXES):
        raise WordsError(key, f"names that begin with {', '.join(RESERVED_PREFIXES)} are the gateway's own")
    return key


def _put_producer(imported: Imported, name: str, parameters: dict[str, Any]) -> None:
    compression = _CODECS.get(parameters.get("compression", "no_compression"), "zstd")
    standing = imported.settings.get("kafka", {}).get("compression")
    if standing is None:
        imported.put("kafka.compression", compression)
    elif standing != compression:
        imported.note("differs", f"{name}: compression = {compression}", f"One holds for all routes: {standing}.")
    acks = parameters.get("required_acks", "all_isr")
    if acks != "all_isr":
        imported.note("differs", f"{name}: required_acks = {acks}", ACKS)
    if parameters.get("query_mode") == "sync":
        imported.note(
            "note", f"{name}: query_mode = sync",
            "The gateway never waits for one message at a time; it acknowledges to EMQX when Kafka has the record.",
        )  # fmt: skip
    if parameters.get("partitions_limit", "all_partitions") != "all_partitions":
        limit = parameters["partitions_limit"]
        imported.note("lost", f"{name}: partitions_limit = {limit}", "All partitions of a topic are used here.")
    for field in ("max_linger_time", "max_linger_bytes", "max_batch_bytes", "max_inflight",
                  "partition_count_refresh_interval", "sync_query_timeout", "max_batch_age", "max_retries",
                  "reconnect_delay"):  # fmt: skip
        if field in parameters:
            why = "Not taken over: batching, retries and flow follow the load here (docs/spool.md)."
            imported.note("note", f"{name}: {field}", why)


def _put_buffer(imported: Imported, name: str, buffer: dict[str, Any]) -> None:
    mode = buffer.get("mode", "memory")
    size = _bytes(buffer.get("per_partition_limit", "256MB"))
    if mode == "memory":
        imported.note(
            "differs", f"{name}: buffer.mode = memory",
            "EMQX keeps what Kafka does not take in memory, and loses it with the node or when the limit is reached. "
            "Here it goes to the spool, on disk and fsynced, 1 GiB for each worker; when that is full, EMQX has to "
            "wait.",
            "data_dir needs a disk that stays: [spool] in docs/configuration.md.",
        )  # fmt: skip
        return
    if size is not None and size > imported.settings.get("spool", {}).get("max_bytes", SpoolSettings().max_bytes):
        imported.put("spool.max_bytes", size)
    imported.note(
        "differs", f"{name}: buffer.mode = {mode}, per_partition_limit = {buffer.get('per_partition_limit', '256MB')}",
        "The spool takes its place: always on disk, fsynced before EMQX is told, one for all partitions of a worker. "
        "Full, it makes EMQX wait and drops nothing.",
        "EMQX's limit is of one partition on one node; spool.max_bytes, of a worker, is for all partitions of all "
        "routes, compressed. It is never set below 1 GiB here. Set it to what a worker must hold in an outage.",
    )  # fmt: skip


def _bytes(text: Any) -> int | None:
    """A size in EMQX's words, whose KB, MB and GB are powers of two; None for another text."""
    found = _SIZE.fullmatch(str(text).strip())
    if found is None:
        return None
    return round(float(found[1]) * _POWERS[found[2].upper()])
