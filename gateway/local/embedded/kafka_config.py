"""The server.properties of an embedded Kafka node. Decides, writes nothing."""

from __future__ import annotations

__all__ = ["SASL_MECHANISMS", "Listeners", "TokenCheck", "node_properties", "properties_text"]

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gateway.local.embedded.certificates import Certificates

SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Listeners:
    """One node's ports on 127.0.0.1, by listener name.

    The names: ``PLAINTEXT``, ``SASL_PLAINTEXT``, ``SSL``, ``SASL_SSL`` and ``CONTROLLER``.
    """

    ports: Mapping[str, int]

    def text(self, *, advertised: bool) -> str:
        return ",".join(
            f"{name}://127.0.0.1:{port}"
            for name, port in self.ports.items()
            if not (advertised and name == "CONTROLLER")
        )


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """What the broker asks of the tokens that OAUTHBEARER shows: signed by a key of ``jwks_url``, and, where given, for
    this audience and of this issuer. The user is its ``sub``."""

    jwks_url: str
    audience: str = ""
    issuer: str = ""


def node_properties(
    node: int,
    nodes: Sequence[Listeners],
    data: Path,
    *,
    users: Mapping[str, str] | None = None,
    certificates: Certificates | None = None,
    tokens: TokenCheck | None = None,
    settings: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The properties of node ``node`` (from 1) of a cluster whose every node is broker and controller.

    ``settings`` come last and win.
    """
    count = len(nodes)
    own = nodes[node - 1]
    replicas = str(min(3, count))
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(
            f"{n}@127.0.0.1:{peer.ports['CONTROLLER']}" for n, peer in enumerate(nodes, 1)
        ),
        "controller.listener.names": "CONTROLLER",
        "listeners": own.text(advertised=False),
        "advertised.listeners": own.text(advertised=True),
        "listener.security.protocol.map": ",".join(
            f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in own.ports
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data),
        # A typing error in a topic's name is to be an error, not a topic.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": "2" if count >= 3 else "1",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": "1",
        # A laptop's groups are few: 3 partitions are made in a tenth of the time that 50 take.
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "share.coordinator.state.topic.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
        # How long controllers take a silent broker for alive (9 s by default): a hanging one is replaced after it, and
        # a killed one may not register again before.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # The default of 128 MB comes out of a heap that is itself not much larger.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }
    for listener in own.ports:
        if listener.startswith("SASL"):
            properties |= _sasl(listener, users or {})
            if tokens is not None:
                properties |= _oauth(listener, tokens)
    if certificates is not None:
        properties |= _tls(certificates)
    return properties | dict(settings or {})


def _sasl(listener: str, users: Mapping[str, str]) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}"
    names = " ".join(f"user_{name}={_jaas_quoted(password)}" for name, password in users.items())
    modules = "org.apache.kafka.common.security"
    scram = f"{modules}.scram.ScramLoginModule required;"
    return {
        "sasl.enabled.mechanisms": ",".join(SASL_MECHANISMS),
        f"{prefix}.plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required {names};",
        f"{prefix}.scram-sha-256.sasl.jaas.config": scram,
        f"{prefix}.scram-sha-512.sasl.jaas.config": scram,
    }


def _oauth(listener: str, tokens: TokenCheck) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}.oauthbearer"
    package = "org.apache.kafka.common.security.oauthbearer"
    return {
        "sasl.enabled.mechanisms": ",".join([*SASL_MECHANISMS, "OAUTHBEARER"]),
        f"{prefix}.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
        f"{prefix}.sasl.server.callback.handler.class": f"{package}.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": tokens.jwks_url,
        **({"sasl.oauthbearer.expected.audience": tokens.audience} if tokens.audience else {}),
        **({"sasl.oauthbearer.expected.issuer": tokens.issuer} if tokens.issuer else {}),
    }


def _tls(certificates: Certificates) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server_pem),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca_file),
        "ssl.client.auth": "requested",  # a client certificate is checked when shown; settings can make it required
    }


def _jaas_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def properties_text(properties: Mapping[str, str]) -> str:
    """``properties`` in the format of java.util.Properties."""
    return "".join(f"{_escaped(name, key=True)}={_escaped(value)}\n" for name, value in properties.items())


def _escaped(text: str, *, key: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if key:
        escaped = escaped.replace("=", "\\=").replace(":", "\\:").replace(" ", "\\ ")
    if escaped[:1] in (" ", "#", "!"):
        escaped = "\\" + escaped
    return "".join(character if character.isascii() else _unicode(character) for character in escaped)


def _unicode(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
