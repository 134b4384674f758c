"""EMQX's Kafka connector as the table ``[kafka]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from config.values.addresses import parse_kafka_address

if TYPE_CHECKING:
    from gateway.tools.migration.findings import Imported

_PASSWORD_FILE: Final = "/run/secrets/kafka-password"  # noqa: S105 - a file's name
_SECRET_FILE: Final = "/run/secrets/kafka-client-secret"  # noqa: S105
_MASK: Final = "******"
_MECHANISMS: Final = {"plain": "PLAIN", "scram_sha_256": "SCRAM-SHA-256", "scram_sha_512": "SCRAM-SHA-512"}
_OURS: Final = ("connect_timeout", "metadata_request_timeout", "min_metadata_refresh_interval", "request_timeout")


def put_connector(imported: Imported, connector: dict[str, Any]) -> None:
    """Addresses, login and TLS. Secrets are never taken over, masked or not."""
    name = f"connector {connector.get('name', 'of the bridge')}"
    hosts = [_with_port(one) for one in str(connector["bootstrap_hosts"]).split(",") if one.strip()]
    imported.put("kafka.bootstrap_servers", hosts)
    encrypted = _put_tls(imported, name, connector.get("ssl"))
    sasl = _put_login(imported, name, connector.get("authentication", "none"))
    security = ("SASL_" if sasl else "") + ("SSL" if encrypted else "PLAINTEXT")
    imported.put("kafka.security", security)
    if connector.get("allow_auto_topic_creation"):
        imported.put("kafka.topics.create", value=True)
        imported.note(
            "differs",
            f"{name}: allow_auto_topic_creation",
            "kafka.topics.create makes missing topics with 12 partitions, not with the broker's default.",
            "Set kafka.topics.partitions, or a table [[kafka.topics.declare]].",
        )
    for field in _OURS:
        if field in connector:
            why = "Not taken over: kafka.request_timeout (5 s) and metadata_max_age (1 s) are ours."
            imported.note("note", f"{name}: {field}", why)
    for field in ("socket_opts", "health_check_topic"):
        if connector.get(field):
            imported.note("note", f"{name}: {field}", "There is no such setting here, and no need of it.")


def _with_port(text: str) -> str:
    """The address, with EMQX's default port if it has none."""
    text = text.strip()
    try:
        parse_kafka_address(text)
    except ValueError:
        return f"{text}:9092"  # EMQX's default port
    return text


def _put_login(imported: Imported, name: str, authentication: Any) -> bool:
    """Returns whether there is a login (SASL)."""
    if not isinstance(authentication, dict):
        if authentication not in ("none", None):
            imported.note(
                "lost", f"{name}: authentication", "Kafka is not logged in to this way here.",
                "SCRAM, PLAIN, OAUTHBEARER and client certificates are what there is (docs/credentials.md).",
            )  # fmt: skip
        return False
    mechanism = str(authentication.get("mechanism", ""))
    if mechanism in _MECHANISMS:
        imported.put("kafka.sasl.mechanism", _MECHANISMS[mechanism])
        imported.put("kafka.sasl.username", str(authentication["username"]))
        masked = _MASK if authentication.get("password") == _MASK else ""
        imported.password("kafka.sasl.password", _PASSWORD_FILE, masked=masked)
        return True
    if mechanism == "oauth":
        _put_oauth(imported, name, authentication)
        return True
    what = "Kerberos" if "kerberos_principal" in authentication else mechanism or str(authentication.get("type", "?"))
    imported.note(
        "lost", f"{name}: authentication by {what}", "The gateway has no such login; the settings have none.",
        "Give the gateway a SCRAM user, a client certificate or a token (docs/credentials.md).",
    )  # fmt: skip
    return False


def _put_oauth(imported: Imported, name: str, authentication: dict[str, Any]) -> None:
    imported.put("kafka.sasl.mechanism", "OAUTHBEARER")
    if authentication.get("extensions"):
        imported.put("kafka.sasl.extensions", {k: str(v) for k, v in authentication["extensions"].items()})
    imported.put("kafka.sasl.token.oauth.token_url", str(authentication["endpoint_uri"]))
    imported.put("kafka.sasl.token.oauth.client_id", str(authentication["client_id"]))
    if authentication.get("scope"):
        imported.put("kafka.sasl.token.oauth.scope", str(authentication["scope"]))
    masked = _MASK if authentication.get("client_secret") == _MASK else ""
    imported.password("kafka.sasl.token.oauth.client_secret", _SECRET_FILE, masked=masked)
    imported.note("check", f"{name}: authentication by OAuth", "The grant is the same; try it: gateway trial.")


def _put_tls(imported: Imported, name: str, ssl: Any) -> bool:
    """Returns whether there is TLS."""
    if not isinstance(ssl, dict) or not ssl.get("enable"):
        return False
    for theirs, ours in (("cacertfile", "ca_file"), ("certfile", "certificate_file"), ("keyfile", "key_file")):
        value = ssl.get(theirs)
        if not value:
            continue
        if "-----BEGIN" in str(value) or "\n" in str(value):
            file = f"/etc/gateway/kafka-{ours.removesuffix('_file')}.pem"
            imported.put(f"kafka.tls.{ours}", file)
            what = "The certificate stands in the connector itself."
            imported.note("check", f"{name}: ssl.{theirs}", what, f"Write it into {file}.")
        else:
            imported.put(f"kafka.tls.{ours}", str(value))
            imported.note(
                "check", f"{name}: ssl.{theirs}", "The path is one on EMQX's machine.",
                "Copy the file to the gateway's, and correct the path.",
            )  # fmt: skip
    if ssl.get("password"):
        imported.password("kafka.tls.key_password", "/run/secrets/kafka-key-password", masked=_MASK)
    if ssl.get("verify") == "verify_none":
        imported.note(
            "differs", f"{name}: ssl.verify = verify_none",
            "EMQX does not look at the broker's certificate; the settings here check it, which may refuse the broker.",
            "Name its authority in kafka.tls.ca_file. Only for a first try: kafka.tls.verify = false.",
        )  # fmt: skip
    sni = ssl.get("server_name_indication", "auto")
    if sni == "disable":
        imported.note("differs", f"{name}: server_name_indication = disable", "The host name is sent, and checked.")
    elif sni not in {"auto", "", None}:
        imported.put("kafka.tls.server_name", str(sni))
    return True
