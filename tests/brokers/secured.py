"""The embedded brokers with logins and TLS, which the gateway has to get along with."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import WEBSOCKET, MqttBroker, bound
from tests.brokers.certificates import PASSWORD, Certificates, make_certificates

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SECURITY = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class TokenCheck:
    """What the broker asks of the tokens that OAUTHBEARER shows: signed by a key of ``jwks_url``, and, where given, for
    this audience and of this issuer. The user is its ``sub``."""

    jwks_url: str
    audience: str = ""
    issuer: str = ""


class SecuredKafka(KafkaCluster):
    """``sasl`` adds a listener for PLAIN and SCRAM with ``users`` (name → password), ``tls`` one with a certificate
    from a CA made here; with both there is also one for SASL over TLS. ``tokens`` lets the SASL listeners take
    OAUTHBEARER too. ``more`` is for KafkaCluster."""

    def __init__(
        self,
        nodes: int = 1,
        directory: Path | None = None,
        *,
        sasl: bool = False,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        tokens: TokenCheck | None = None,
        **more: Any,
    ) -> None:
        super().__init__(nodes, directory, **more)
        self.users = dict(users or {"gateway": "gateway-secret"})
        self._certificates: Certificates | None = None
        self._tls, self._tokens = tls, tokens
        wanted = {"SASL_PLAINTEXT": sasl, "SSL": tls, "SASL_SSL": sasl and tls}
        self.extra_listeners = [name for name, is_wanted in wanted.items() if is_wanted]
        if sasl:
            self.format_options = [
                option
                for name, password in self.users.items()
                for mechanism in _MECHANISMS[1:]
                for option in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
            ]
        if tokens is not None:  # Kafka fetches keys from nowhere else
            self.extra_jvm_flags = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.jwks_url}"]

    @property
    def certificates(self) -> Certificates:
        assert self._certificates is not None, "made without tls=True, or not started"
        return self._certificates

    @property
    def sasl_bootstrap(self) -> str:
        return self.addresses("SASL_PLAINTEXT")

    @property
    def tls_bootstrap(self) -> str:
        return self.addresses("SSL")

    @property
    def sasl_tls_bootstrap(self) -> str:
        return self.addresses("SASL_SSL")

    def extra_properties(self, directory: Path) -> Mapping[str, str]:
        properties: dict[str, str] = {}
        for listener in self.extra_listeners:
            if listener.startswith("SASL"):
                properties |= sasl_properties(listener, self.users, self._tokens)
        if self._tls:
            if self._certificates is None:
                self._certificates = make_certificates(directory / "certificates")
            properties |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.certificates.server_pem),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.certificates.ca_file),
                "ssl.client.auth": "requested",  # a client certificate is checked when shown; settings can require it
            }
        return properties


def sasl_properties(listener: str, users: Mapping[str, str], tokens: TokenCheck | None) -> dict[str, str]:
    prefix = f"listener.name.{listener.lower()}"
    names = " ".join(f"user_{name}={_jaas_quoted(password)}" for name, password in users.items())
    scram = f"{_SECURITY}.scram.ScramLoginModule required;"
    properties = {
        "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
        f"{prefix}.plain.sasl.jaas.config": f"{_SECURITY}.plain.PlainLoginModule required {names};",
        f"{prefix}.scram-sha-256.sasl.jaas.config": scram,
        f"{prefix}.scram-sha-512.sasl.jaas.config": scram,
    }
    if tokens is None:
        return properties
    prefix, package = f"{prefix}.oauthbearer", f"{_SECURITY}.oauthbearer"
    return properties | {
        "sasl.enabled.mechanisms": ",".join([*_MECHANISMS, "OAUTHBEARER"]),
        f"{prefix}.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
        f"{prefix}.sasl.server.callback.handler.class": f"{package}.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": tokens.jwks_url,
        **({"sasl.oauthbearer.expected.audience": tokens.audience} if tokens.audience else {}),
        **({"sasl.oauthbearer.expected.issuer": tokens.issuer} if tokens.issuer else {}),
    }


def _jaas_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class SecuredMqtt(MqttBroker):
    """With ``tls`` it has a TLS and a secure WebSocket listener. ``more`` is for MqttBroker."""

    def __init__(self, *, tls: bool = False, **more: Any) -> None:
        super().__init__(**more)
        self._certificates: Certificates | None = None
        self.extra_listeners = ["tls", "wss"] if tls else []

    @property
    def certificates(self) -> Certificates:
        assert self._certificates is not None, "made without tls=True, or not started"
        return self._certificates

    @property
    def tls_port(self) -> int:
        return self.listener("tls")

    @property
    def wss_port(self) -> int:
        return self.listener("wss")

    @property
    def ca_file(self) -> Path:
        return self.certificates.ca_file

    def extra_listeners_xml(self, directory: Path) -> str:
        if not self.extra_listeners:
            return ""
        if self._certificates is None:
            self._certificates = make_certificates(directory / "certificates")
        password = escape(PASSWORD)
        file = f"<path>{escape(str(self.certificates.server_keystore))}</path><password>{password}</password>"
        tls = f"<tls><keystore>{file}<private-key-password>{password}</private-key-password></keystore></tls>"
        return (
            f"<tls-tcp-listener>{bound(self.tls_port)}{tls}</tls-tcp-listener>"
            f"<tls-websocket-listener>{bound(self.wss_port)}{WEBSOCKET}{tls}</tls-websocket-listener>"
        )
