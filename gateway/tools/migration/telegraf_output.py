"""Telegraf's ``outputs.kafka``: the table ``[kafka]``, and topic, key and headers of the routes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from gateway.tools.migration.findings import ACKS

if TYPE_CHECKING:
    from gateway.tools.migration.findings import Imported

_VARIABLE: Final = re.compile(r"\$\{?[A-Za-z_]\w*|@\{")
_CODECS: Final = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_TLS: Final = {
    "tls_ca": "ca_file", "tls_cert": "certificate_file", "tls_key": "key_file", "tls_server_name": "server_name"
}  # fmt: skip
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_PASSWORD_FILE: Final = "/run/secrets/kafka-password"  # noqa: S105 - a file's name
_TOKEN_FILE: Final = "/run/secrets/kafka-token"  # noqa: S105
_NO_NEED: Final = frozenset(
    "version client_id keep_alive_period metadata_full metadata_retry_max metadata_retry_type metadata_retry_backoff "  # noqa: SIM905
    "metadata_retry_max_duration sasl_version max_retry idempotent_writes exclude_topic_tag alias".split()
)
_HANDLED: Final = frozenset(
    "brokers topic topic_tag topic_suffix routing_tag routing_key partitioner compression_codec required_acks "  # noqa: SIM905
    "max_message_bytes producer_timestamp metric_name_header enable_tls tls_ca tls_cert tls_key tls_key_pwd "
    "insecure_skip_verify tls_server_name socks5_enabled socks5_address socks5_username socks5_password sasl_username "
    "sasl_password sasl_mechanism sasl_access_token sasl_extensions data_format".split()
)


def put_output(
    imported: Imported,
    output: dict[str, Any],
    routes: list[dict[str, Any]],
    tags: list[dict[str, str]],
    topic_tags: list[str],
) -> None:
    """Fill in ``[kafka]`` and each route; ``tags`` are the templates of the tags that a route's topics give, and
    ``topic_tags`` the name of the one that is the topic itself."""
    imported.put("kafka.bootstrap_servers", [str(one) for one in output.get("brokers", ["127.0.0.1:9092"])])
    imported.put("kafka.compression", _CODECS.get(output.get("compression_codec", 0), "zstd"))
    if "max_message_bytes" in output:
        imported.put("kafka.max_record_bytes", max(1024, int(output["max_message_bytes"])))
    encrypted = put_tls(imported, "outputs.kafka", output, "kafka")
    sasl = _put_login(imported, output)
    imported.put("kafka.security", ("SASL_" if sasl else "") + ("SSL" if encrypted else "PLAINTEXT"))
    for route, known, topic_tag in zip(routes, tags, topic_tags, strict=True):
        named = {**known, topic_tag: "${topic}"} if topic_tag else known
        where = f"for {', '.join(route['filters'])}"
        route["topic"] = _topic(imported, output, named, where)
        route["key"] = _key(imported, output, named, where)
        if known:
            route["headers"] = dict(known)
    _note_producer(imported, output)


def _topic(imported: Imported, output: dict[str, Any], tags: dict[str, str], where: str) -> str:
    """A route's Kafka topic, or its template. ``where`` names the route in findings."""
    topic = str(output.get("topic", "telegraf"))
    by_tag = str(output.get("topic_tag", ""))
    if by_tag:
        if by_tag in tags and tags[by_tag] != "${topic}":
            imported.note(
                "check", f"outputs.kafka: topic_tag = {by_tag}",
                "Devices choose the topic's name by a level of theirs.",
                f"Narrow routes[].allowed_topics. Telegraf writes what lacks the tag to {topic}; here it is "
                f"dead-lettered.",
            )  # fmt: skip
            return tags[by_tag]
        imported.note(
            "lost", f"outputs.kafka: topic_tag = {by_tag}, {where}",
            f"That tag is not known before the payload is read, so everything goes to {topic}.",
            "A field of a JSON payload can make the topic: ${payload.FIELD} in routes[].topic.",
        )  # fmt: skip
    suffix = output.get("topic_suffix") or {}
    if not suffix:
        return topic
    separator, keys = str(suffix.get("separator", "")), [str(key) for key in suffix.get("keys", [])]
    if suffix.get("method") == "tags" and keys and all(tags.get(key, "${topic}") != "${topic}" for key in keys):
        imported.note(
            "check", f"outputs.kafka: topic_suffix of {', '.join(keys)}", "Devices choose the end of the topic's name.",
            "Narrow routes[].allowed_topics.",
        )  # fmt: skip
        return topic + "".join(separator + tags[key] for key in keys)
    imported.note(
        "lost", f"outputs.kafka: topic_suffix, method {suffix.get('method')}, {where}",
        f"Measurements, and tags that the payload gives, are not known here: everything goes to {topic}.",
        "A level of the MQTT topic can stand in its place: ${topic[n]} in routes[].topic.",
    )  # fmt: skip
    return topic


def _key(imported: Imported, output: dict[str, Any], tags: dict[str, str], where: str) -> str:
    """A route's key, or its template; empty for none. ``where`` names the route in findings."""
    by_tag, fixed = str(output.get("routing_tag", "")), str(output.get("routing_key", ""))
    if output.get("partitioner") == "round_robin" or (not by_tag and fixed in {"", "random"}):
        if fixed == "random":
            imported.note(
                "differs", "outputs.kafka: routing_key = random", "Records have no key; they are spread all the same."
            )
        return ""
    imported.note(
        "differs", f"outputs.kafka: {'routing_tag = ' + by_tag if by_tag else 'routing_key = ' + fixed}",
        "Telegraf chooses the partition by FNV-1a of the key, here it is murmur2, as Java's clients do: a key's "
        "records move to another partition.",
        "Switch over with a new topic, or let consumers read the old one to its end first (docs/migration.md).",
    )  # fmt: skip
    if not by_tag:
        return fixed.replace("$", "${$}")
    if by_tag in tags:
        return tags[by_tag]
    imported.note(
        "lost", f"outputs.kafka: routing_tag = {by_tag}, {where}",
        "That tag is not known before the payload is read; `host` is the machine Telegraf runs on. The key is the "
        "MQTT topic instead.",
        'A level of the topic or a field of a JSON payload can be the key: "${topic[1]}", "${payload.device}".',
    )  # fmt: skip
    return "${topic}"


def _put_login(imported: Imported, output: dict[str, Any]) -> bool:
    """Returns whether there is a login (SASL)."""
    mechanism = str(output.get("sasl_mechanism") or ("PLAIN" if output.get("sasl_username") else ""))
    if not mechanism:
        return False
    if mechanism not in _MECHANISMS:
        imported.note(
            "lost", f"outputs.kafka: sasl_mechanism = {mechanism}",
            "The gateway has no such login; the settings have none.",
            "Give it a SCRAM user, a client certificate or a token (docs/credentials.md).",
        )  # fmt: skip
        return False
    imported.put("kafka.sasl.mechanism", mechanism)
    if mechanism == "OAUTHBEARER":
        imported.put("kafka.sasl.token.file", _TOKEN_FILE)
        imported.note(
            "check", "outputs.kafka: sasl_access_token",
            "A token comes from a file here, which is read again as it changes.",
            f"Keep it in {_TOKEN_FILE}, or let the gateway fetch it: kafka.sasl.token.oauth (docs/credentials.md).",
        )  # fmt: skip
        if output.get("sasl_extensions"):
            imported.put("kafka.sasl.extensions", {k: str(v) for k, v in output["sasl_extensions"].items()})
        return True
    put_username(imported, "outputs.kafka: sasl_username", str(output.get("sasl_username", "")), "kafka.sasl.username")
    imported.password("kafka.sasl.password", _PASSWORD_FILE)
    return True


def put_username(imported: Imported, what: str, text: str, setting: str) -> None:
    """Set a user name; for a variable a name in its place, since the settings take no password without one."""
    if _VARIABLE.search(text) or not text:
        imported.note(
            "check", f"{what} {text}", "A variable or a secret store's entry.", f"Write the name into {setting}."
        )
        text = "gateway"
    imported.put(setting, text)


def put_tls(imported: Imported, plugin: str, given: dict[str, Any], table: str) -> bool:
    """The plugin's TLS as the table ``mqtt.tls`` or ``kafka.tls``. Returns whether it has any."""
    for theirs, ours in _TLS.items():
        if given.get(theirs):
            imported.put(f"{table}.tls.{ours}", str(given[theirs]))
    if given.get("tls_key_pwd"):
        imported.password(f"{table}.tls.key_password", f"/run/secrets/{table}-key-password")
    if given.get("insecure_skip_verify"):
        imported.note(
            "differs", f"{plugin}: insecure_skip_verify",
            "The broker's certificate is checked here, which may refuse it.",
            f"Name its authority in {table}.tls.ca_file. Only for a first try: {table}.tls.verify = false.",
        )  # fmt: skip
    return any(given.get(name) for name in ("enable_tls", "insecure_skip_verify", *_TLS))


def _note_producer(imported: Imported, output: dict[str, Any]) -> None:
    acks = output.get("required_acks", -1)
    if acks != -1:
        imported.note("differs", f"outputs.kafka: required_acks = {acks}", ACKS)
    if output.get("socks5_enabled"):
        imported.note("lost", "outputs.kafka: socks5_enabled", "Kafka is reached directly here, by no proxy.")
    if output.get("metric_name_header"):
        imported.note(
            "lost", f"outputs.kafka: metric_name_header = {output['metric_name_header']}", "Metrics have no names here."
        )
    if output.get("producer_timestamp", "metric") == "metric":
        imported.note(
            "differs", "outputs.kafka: producer_timestamp = metric",
            "A record's timestamp is when the gateway received the message, not what the payload says.",
            "Read the device's time from the payload downstream.",
        )  # fmt: skip
    for name in sorted(set(output) & _NO_NEED):
        imported.note("note", f"outputs.kafka: {name}", "There is no such setting here, and no need of it.")
    for name in sorted(set(output) - _NO_NEED - _HANDLED):
        imported.note("lost", f"outputs.kafka: {name}", "There is no such setting here.")
