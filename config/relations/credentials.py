"""Relations between the settings with which the gateway, or its operator, is known to EMQX and to Kafka."""

from __future__ import annotations

__all__ = ["REFUSED", "WARNED"]

import re
from functools import partial
from typing import TYPE_CHECKING

from config.relations.mqtt import tls_files, unverified
from config.relations.rules import Rule, View
from config.relations.tokens import token_refused, token_warned
from config.values.addresses import is_loopback, parse_kafka_address, parse_mqtt_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from config.kafka import SaslSettings

_EXTENSION_NAME = re.compile(r"[A-Za-z]+")  # RFC 7628, 3.1
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]*")
_MQTT_USERNAME_NEEDED = "is given without mqtt.username: a password is sent beside a user name only"


def _mqtt(view: View) -> Iterator[str]:
    mqtt = view.settings.mqtt
    if mqtt.password is not None and mqtt.username is None:
        yield (
            f"{view.say('mqtt', 'password')} {_MQTT_USERNAME_NEEDED}, so the broker would see an anonymous client; "
            "give the user name too."
        )
    if mqtt.token is not None and mqtt.username is None:
        yield (
            f"{view.say('mqtt', 'token')} {_MQTT_USERNAME_NEEDED}, and the token is sent as the password; give the "
            "user name too, any name where the broker looks at the token alone."
        )
    if mqtt.token is not None and mqtt.password is not None:
        yield (
            f"{view.say('mqtt', 'token')} and {view.say('mqtt', 'password')} are both given, and both are sent as the "
            "password: which one is meant is not clear; remove one."
        )
    if mqtt.proxy is not None and mqtt.proxy.password is not None and mqtt.proxy.username is None:
        yield (
            f"{view.say('mqtt', 'proxy', 'password')} is given without mqtt.proxy.username: the proxy would not know "
            "whose it is; give the user name too."
        )


def _mqtt_token(view: View) -> Iterator[str]:
    yield from token_refused(view, "mqtt", "token")


def _kafka_security(view: View) -> Iterator[str]:
    kafka = view.settings.kafka
    if kafka.security.startswith("SASL") and kafka.sasl is None:
        yield (
            f"{view.say('kafka', 'security')} needs a user, but kafka.sasl is not given: Kafka would refuse every "
            "connection; add [kafka.sasl] with username and password_file, or with mechanism OAUTHBEARER and a token."
        )
    elif kafka.sasl is not None and not kafka.security.startswith("SASL"):
        wanted = "SASL_SSL" if kafka.security == "SSL" else "SASL_PLAINTEXT or SASL_SSL"
        yield (
            f"{view.say('kafka', 'sasl')} is given, but {view.say('kafka', 'security')} never shows it: the gateway "
            f"would be anonymous; set kafka.security to {wanted}, or remove the table."
        )


def _admin_security(view: View) -> Iterator[str]:
    admin = view.settings.admin
    if admin.security is None:
        for name in ("tls", "sasl"):
            if view.changed("admin", name):
                yield (
                    f"{view.say('admin', name)} is given without admin.security: the commands would log in as "
                    f"[kafka] says; set admin.security, or remove [admin.{name}]."
                )
    elif admin.security.startswith("SASL") and admin.sasl is None:
        yield (
            f"{view.say('admin', 'security')} needs a user, but admin.sasl is not given: Kafka would refuse every "
            "connection; add [admin.sasl] with username and password_file, or with mechanism OAUTHBEARER and a token."
        )
    elif admin.sasl is not None and not admin.security.startswith("SASL"):
        wanted = "SASL_SSL" if admin.security == "SSL" else "SASL_PLAINTEXT or SASL_SSL"
        yield (
            f"{view.say('admin', 'sasl')} is given, but {view.say('admin', 'security')} never shows it; set "
            f"admin.security to {wanted}, or remove the table."
        )
    if admin.security is not None and view.changed("admin", "tls") and not admin.security.endswith("SSL"):
        yield (
            f"{view.say('admin', 'tls')} is given, but {view.say('admin', 'security')}: nothing would be encrypted; "
            "set admin.security to SSL or SASL_SSL, or remove the table."
        )
    yield from tls_files(view, "admin")


def _sasl(view: View, side: str) -> Iterator[str]:
    sasl: SaslSettings | None = view.value(side, "sasl")
    if sasl is None:
        return
    mechanism = view.say(side, "sasl", "mechanism")
    oauth = sasl.mechanism == "OAUTHBEARER"
    for name in ("username", "password"):
        given = getattr(sasl, name) is not None
        if oauth and given:
            yield (
                f"{view.say('kafka', 'sasl', name)} is given, but {mechanism} never shows it: the token alone says who "
                "the gateway is; remove it, or choose another mechanism."
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
                f"{view.say('kafka', 'sasl', name)} is given, but {mechanism} never shows it; set the mechanism to "
                "OAUTHBEARER, or remove it."
            )


def _extensions(view: View, side: str) -> Iterator[str]:
    sasl: SaslSettings | None = view.value(side, "sasl")
    if sasl is None:
        return
    say = f"{side}.sasl.extensions ({view.origin('kafka', 'sasl', 'extensions')})"
    for name, value in sasl.extensions.items():
        if name == "auth":
            yield f'{say} has "auth", which is the name of the token itself (RFC 7628); remove it.'
        elif not _EXTENSION_NAME.fullmatch(name):
            yield f"{say} has the name {name!r}, but a SASL extension's name is letters alone (RFC 7628); correct it."
        elif not _EXTENSION_VALUE.fullmatch(value):
            yield (
                f"{say} has a value for {name!r} with other characters than printable ASCII, which no broker takes "
                "(RFC 7628); correct it."
            )


def _sasl_token(view: View, side: str) -> Iterator[str]:
    if view.value(side, "sasl") is not None:
        yield from token_refused(view, side, "sasl", "token")


REFUSED = (
    Rule(("mqtt.username", "mqtt.password", "mqtt.token", "mqtt.proxy"), _mqtt),
    Rule(("mqtt.token",), _mqtt_token),
    Rule(("kafka.security", "kafka.sasl"), _kafka_security),
    Rule(("admin.security", "admin.sasl", "admin.tls"), _admin_security),
    *(
        Rule((f"{side}.sasl",), partial(find, side=side))
        for side in ("kafka", "admin")
        for find in (_sasl, _extensions, _sasl_token)
    ),
)


def _mqtt_readable(view: View) -> Iterator[str]:
    mqtt = view.settings.mqtt
    shown = next((name for name in ("password", "token") if getattr(mqtt, name) is not None), None)
    if shown is None:
        return
    for text in mqtt.addresses:
        address = parse_mqtt_address(text)
        if not address.encrypted and not is_loopback(address.host):
            yield (
                f"{view.say('mqtt', shown)} is sent readable to everybody on the way to {address}, an address of "
                f"mqtt.addresses ({view.origin('mqtt', 'addresses')}); use mqtts:// or wss://."
            )


def _mqtt_token_look(view: View) -> Iterator[str]:
    yield from token_warned(view, "mqtt", "token")


def _readable(view: View, side: str) -> Iterator[str]:
    sasl: SaslSettings | None = view.value(side, "sasl")
    if sasl is None or view.value(side, "security") != "SASL_PLAINTEXT" or sasl.mechanism.startswith("SCRAM"):
        return
    what, instead = ("the password", ", or a SCRAM mechanism") if sasl.token is None else ("the token", "")
    addresses = view.value(side, "bootstrap_servers") or view.settings.kafka.bootstrap_servers
    for text in addresses:
        if not is_loopback(parse_kafka_address(text).host):
            yield (
                f"{view.say(side, 'sasl', 'mechanism')} with {view.say(side, 'security')} sends {what} "
                f"readable to everybody on the way to {text}; use SASL_SSL{instead}."
            )


def _sasl_token_look(view: View, side: str) -> Iterator[str]:
    if view.value(side, "sasl") is not None:
        yield from token_warned(view, side, "sasl", "token")


def _admin_unverified(view: View) -> Iterator[str]:
    admin = view.settings.admin
    if admin.security is not None and admin.security.endswith("SSL") and not admin.tls.verify:
        yield unverified(view, "admin")


WARNED = (
    Rule(("mqtt.password", "mqtt.token", "mqtt.addresses"), _mqtt_readable),
    Rule(("mqtt.token",), _mqtt_token_look),
    Rule(("kafka.sasl", "kafka.security", "kafka.bootstrap_servers"), partial(_readable, side="kafka")),
    Rule(
        ("admin.sasl", "admin.security", "admin.bootstrap_servers", "kafka.bootstrap_servers"),
        partial(_readable, side="admin"),
    ),
    Rule(("kafka.sasl",), partial(_sasl_token_look, side="kafka")),
    Rule(("admin.sasl",), partial(_sasl_token_look, side="admin")),
    Rule(("admin.tls", "admin.security"), _admin_unverified),
)
