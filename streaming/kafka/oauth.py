"""OAUTHBEARER as the Java client inside Spark does it: it fetches or reads its tokens itself, and knows fewer ways.

What it cannot do is refused here in a sentence; the gateway's own side can do it all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from config import error_words
from config.errors import ConfigError

if TYPE_CHECKING:
    from config.settings import KafkaSettings, OAuthSettings, SaslSettings

_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


def oauth_options(sasl: SaslSettings) -> dict[str, str]:
    """``kafka.sasl`` with a token, as options of Spark's Kafka source; holds secrets. Raises ConfigError."""
    url = _token_url(sasl)
    words = [f"extension_{name}={quoted(value)}" for name, value in sasl.extensions.items()]
    if sasl.token is not None and sasl.token.oauth is not None:
        words += _client(sasl.token.oauth)
    return {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": url,
        "kafka.sasl.jaas.config": " ".join([f"{_PACKAGE}.OAuthBearerLoginModule required", *words]) + ";",
    }


def jvm_options(kafka: KafkaSettings) -> str:
    """What the JVMs of driver and executors are started with: where a Kafka client may get tokens from, which newer
    clients want to be told beside their settings. Empty without tokens. Holds no secret."""
    if kafka.sasl is None or kafka.sasl.mechanism != "OAUTHBEARER":
        return ""
    return f"-D{_ALLOWED}={_token_url(kafka.sasl)}"


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n")
    return f'"{escaped}"'


def _token_url(sasl: SaslSettings) -> str:
    token = sasl.token
    assert token is not None, "config.relations.credentials refuses settings without"
    if token.oauth is not None:
        return token.oauth.token_url
    if token.file is not None:
        return token.file.absolute().as_uri()
    raise ConfigError(
        "kafka.sasl.token.value is given, but Spark's Kafka client reads its tokens from a file or fetches them: put"
        " the token into a file and name it in kafka.sasl.token.file, on every machine of the cluster."
    )


def _client(oauth: OAuthSettings) -> list[str]:
    where = "kafka.sasl.token.oauth"
    unknown = {
        f"{where}.audience": bool(oauth.audience),
        f"{where}.parameters": bool(oauth.parameters),
        f'{where}.client_authentication = "post"': oauth.client_authentication == "post",
        f"{where}.tls.certificate_file": oauth.tls.certificate_file is not None,
        f"{where}.tls.server_name": oauth.tls.server_name is not None,
        f"{where}.tls.verify = false": not oauth.tls.verify,
    }
    for setting, given in unknown.items():
        if given:
            raise ConfigError(
                f"{setting} is given, but Spark's Kafka client cannot do that when it fetches a token: let the job read"
                " one from a file that something else keeps fresh (kafka.sasl.token.file)."
            )
    assert oauth.client_secret is not None, "without a certificate there is a secret"
    words = [f"clientId={quoted(oauth.client_id)}", f"clientSecret={quoted(oauth.client_secret.get_secret_value())}"]
    if oauth.scope:
        words.append(f"scope={quoted(oauth.scope)}")
    if oauth.tls.ca_file is not None:
        certificates = read_pem(oauth.tls.ca_file, f"{where}.tls.ca_file")
        words += ['ssl.truststore.type="PEM"', f"ssl.truststore.certificates={quoted(certificates)}"]
    return words


def read_pem(path: Path, setting: str) -> str:
    """A file's text. Raises ConfigError, which names the setting, if it is not one in PEM form."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{setting} is {str(path)!r}, which cannot be read as a PEM file: {error_words.words(error)}."
        ) from error
    if "-----BEGIN " not in text:
        raise ConfigError(f"{setting} is {str(path)!r}, which holds nothing in PEM form (no line -----BEGIN …-----).")
    return text
