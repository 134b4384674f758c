"""Relations between the settings of logins at EMQX and Kafka, the gateway's and its operator's."""

import re
from collections.abc import Iterator
from functools import partial

from config.relations.client_tls import tls_files, unverified
from config.relations.rules import Rule, changed, value, when
from config.relations.tokens import token_refused, token_warned
from config.settings import Settings
from config.tables.kafka import SaslSettings
from config.values.addresses import is_loopback, parse_kafka_address, parse_mqtt_address

_EXTENSION_NAME = re.compile(r"[A-Za-z]+")  # RFC 7628, 3.1
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]*")


def _sasl(settings: Settings, side: str) -> Iterator[str]:
    """Refuses a SASL table that its mechanism cannot use, or that lacks what it needs. ``side``: "kafka" or "admin"."""
    sasl: SaslSettings | None = value(settings, f"{side}.sasl")
    if sasl is None:
        return
    mechanism = f"<{side}.sasl.mechanism>"
    oauth = sasl.mechanism == "OAUTHBEARER"
    for name in ("username", "password"):
        given = getattr(sasl, name) is not None
        if oauth and given:
            yield (
                f"<{side}.sasl.{name}> is given, but {mechanism} never shows it: the token alone says who the gateway "
                "is; remove it, or choose another mechanism."
            )
        elif not oauth and not given:
            also = "_file" if name == "password" else ""
            yield (
                f"{mechanism} needs {side}.sasl.{name}, which is not given: Kafka would refuse every connection; add "
                f"{name}{also} to [{side}.sasl]."
            )
    if oauth and sasl.token is None:
        yield (
            f"{mechanism} needs a token, but {side}.sasl.token is not given: there would be nothing to show; add "
            f"[{side}.sasl.token] with value_file, file or oauth."
        )
    for name in ("token", "extensions"):
        if not oauth and getattr(sasl, name):
            yield (
                f"<{side}.sasl.{name}> is given, but {mechanism} never shows it; set the mechanism to OAUTHBEARER, or "
                "remove it."
            )
    for name, text in sasl.extensions.items():
        if name == "auth":
            yield f'<{side}.sasl.extensions> has "auth", which is the name of the token itself (RFC 7628); remove it.'
        elif not _EXTENSION_NAME.fullmatch(name):
            yield (
                f"<{side}.sasl.extensions> has the name {name!r}, but a SASL extension's name is letters alone "
                "(RFC 7628); correct it."
            )
        elif not _EXTENSION_VALUE.fullmatch(text):
            yield (
                f"<{side}.sasl.extensions> has a value for {name!r} with other characters than printable ASCII, which "
                "no broker takes (RFC 7628); correct it."
            )
    yield from token_refused(settings, f"{side}.sasl.token")


def _of_kafka(side: str) -> tuple[Rule, ...]:
    """Rules that refuse, of ``kafka`` and ``admin`` alike."""

    def security(settings: Settings) -> str:
        return value(settings, f"{side}.security") or ""

    def unused_sasl(plain: str, wanted: str) -> Rule:
        """Refuses a login that ``plain``, a security without SASL, never shows; ``wanted`` is the advice."""
        return when(
            lambda s: security(s) == plain and value(s, f"{side}.sasl") is not None,
            f"<{side}.sasl> is given, but <{side}.security> never shows it: Kafka would see an anonymous client; set "
            f"{side}.security to {wanted}, or remove the table.",
        )

    return (
        when(
            lambda s: security(s).startswith("SASL") and value(s, f"{side}.sasl") is None,
            f"<{side}.security> needs a user, but {side}.sasl is not given: Kafka would refuse every connection; add "
            f"[{side}.sasl] with username and password_file, or with mechanism OAUTHBEARER and a token.",
            f"{side}.sasl",
        ),
        unused_sasl("SSL", "SASL_SSL"),
        unused_sasl("PLAINTEXT", "SASL_PLAINTEXT or SASL_SSL"),
        when(
            lambda s: security(s).endswith("PLAINTEXT") and changed(s, f"{side}.tls"),
            f"<{side}.tls> is given, but <{side}.security>: nothing would be encrypted; set {side}.security to SSL or "
            "SASL_SSL, or remove the table.",
        ),
        Rule((f"{side}.tls",), lambda s: tls_files(s, f"{side}.tls")),
        Rule((f"{side}.sasl",), lambda s: _sasl(s, side)),
    )


def _admin_inherits(name: str) -> Rule:
    """Refuses the table ``name`` ("tls", "sasl") of ``admin`` without admin.security: [kafka] would be used instead."""
    return when(
        lambda s: s.admin.security is None and changed(s, f"admin.{name}"),
        f"<admin.{name}> is given without admin.security: the commands would log in as [kafka] says; set "
        f"admin.security, or remove [admin.{name}].",
        "admin.security",
    )


REFUSED = (
    when(
        lambda s: s.mqtt.password is not None and s.mqtt.username is None,
        "<mqtt.password> is given without mqtt.username: a password is sent beside a user name only, so the broker "
        "would see an anonymous client; give the user name too.",
        "mqtt.username",
    ),
    when(
        lambda s: s.mqtt.token is not None and s.mqtt.username is None,
        "<mqtt.token> is given without mqtt.username: the token is sent as the password, which needs a user name; give "
        "the user name too, any name where the broker looks at the token alone.",
        "mqtt.username",
    ),
    when(
        lambda s: s.mqtt.token is not None and s.mqtt.password is not None,
        "<mqtt.token> and <mqtt.password> are both given, and both are sent as the password: which one is meant is not "
        "clear; remove one.",
    ),
    when(
        lambda s: s.mqtt.proxy is not None and s.mqtt.proxy.password is not None and s.mqtt.proxy.username is None,
        "<mqtt.proxy.password> is given without mqtt.proxy.username: the proxy needs both; give the user name too.",
        "mqtt.proxy",
    ),
    Rule(("mqtt.token",), lambda s: token_refused(s, "mqtt.token")),
    *_of_kafka("kafka"),
    *_of_kafka("admin"),
    _admin_inherits("tls"),
    _admin_inherits("sasl"),
)


def _mqtt_readable(settings: Settings) -> Iterator[str]:
    """Warns of a password or token sent readable to an MQTT broker on another machine."""
    mqtt = settings.mqtt
    shown = next((name for name in ("password", "token") if getattr(mqtt, name) is not None), None)
    if shown is None:
        return
    for address in map(parse_mqtt_address, mqtt.addresses):
        if not address.encrypted and not is_loopback(address.host):
            yield (
                f"<mqtt.{shown}> is sent readable over the network to {address}, one of <mqtt.addresses>; use "
                "mqtts:// or wss://."
            )


def _readable(settings: Settings, side: str) -> Iterator[str]:
    """Warns of a password or token sent readable to Kafka on another machine. ``side``: "kafka" or "admin"."""
    sasl: SaslSettings | None = value(settings, f"{side}.sasl")
    if sasl is None or value(settings, f"{side}.security") != "SASL_PLAINTEXT" or sasl.mechanism.startswith("SCRAM"):
        return
    what, instead = ("the password", ", or a SCRAM mechanism") if sasl.token is None else ("the token", "")
    for text in value(settings, f"{side}.bootstrap_servers") or settings.kafka.bootstrap_servers:
        if not is_loopback(parse_kafka_address(text).host):
            yield (
                f"<{side}.sasl.mechanism> with <{side}.security> sends {what} readable over the network to {text}; use "
                f"SASL_SSL{instead}."
            )


WARNED = (
    Rule(("mqtt.password", "mqtt.token", "mqtt.addresses"), _mqtt_readable),
    Rule(("mqtt.token",), lambda s: token_warned(s, "mqtt.token")),
    *(
        rule
        for side in ("kafka", "admin")
        for rule in (
            Rule(
                (f"{side}.sasl", f"{side}.security", f"{side}.bootstrap_servers", "kafka.bootstrap_servers"),
                partial(_readable, side=side),
            ),
            Rule((f"{side}.sasl",), partial(token_warned, at=f"{side}.sasl.token")),
        )
    ),
    unverified("admin"),
)
