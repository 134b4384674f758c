"""Our Kafka settings as the options of Spark's Kafka source. What its Java client cannot do is refused in a sentence.

Spark hands every option that begins with ``kafka.`` to the Java client inside it. Certificates travel as text inside
the options, not as paths, so that the executors of a cluster need no files.
"""

import re
from pathlib import Path

from config import error_words
from config.errors import ConfigError
from config.settings import KafkaSettings, OAuthSettings, SaslSettings, Settings, TlsSettings

_SECURITY = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
GROUP_ID_PREFIX = "gateway-stream"
"""Spark reads with a consumer group per query and start, named with this prefix. It commits nothing; an access rule for
the user has to allow the groups with this prefix."""


def topics(settings: Settings) -> tuple[str, ...]:
    """The Kafka topics to read: ``stream.topics``, else those the routes name. Raises ConfigError if there are none, or
    if alerts are written to one."""
    if settings.stream.topics:
        return tuple(dict.fromkeys(settings.stream.topics))
    if not settings.routes:
        raise ConfigError(
            "stream.topics is empty and there are no routes to take the topics from: name the Kafka topics to read in"
            " stream.topics."
        )
    if templates := [route.name for route in settings.routes if "${" in route.topic]:
        raise ConfigError(
            f"stream.topics is empty, and the topic of route {templates[0]!r} is a template, so the topics it makes are"
            " not known here: name the Kafka topics to read in stream.topics."
        )
    found = dict.fromkeys(route.topic for route in settings.routes)
    if settings.stream.anomalies.topic in found:
        raise ConfigError(
            f"stream.anomalies.topic = {settings.stream.anomalies.topic!r} is also a topic of routes: the jobs would"
            " read alerts as telemetry; name another topic."
        )
    return tuple(found)


def source_options(kafka: KafkaSettings) -> dict[str, str]:
    """How to reach Kafka, as options of Spark's Kafka source; holds secrets. Reads the certificate files. Raises
    ConfigError for what the Java client cannot do, or for a file it could not use."""
    options = {
        "kafka.bootstrap.servers": ",".join(kafka.bootstrap_servers),
        "kafka.security.protocol": kafka.security,
        "groupIdPrefix": GROUP_ID_PREFIX,
    }
    if kafka.security in {"SASL_PLAINTEXT", "SASL_SSL"}:
        assert kafka.sasl is not None, "config.relations.credentials refuses settings without"
        options |= _sasl_options(kafka.sasl)
    if kafka.security in {"SSL", "SASL_SSL"}:
        options |= _tls_options(kafka.tls)
    return options


def jvm_options(kafka: KafkaSettings) -> str:
    """Where a Kafka client may get tokens from, which newer clients want to be told beside their settings, as an option
    of the JVMs of driver and executors. Empty without tokens. Holds no secret."""
    if kafka.sasl is None or kafka.sasl.mechanism != "OAUTHBEARER":
        return ""
    return f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={_token_url(kafka.sasl)}"


def _sasl_options(sasl: SaslSettings) -> dict[str, str]:
    options: dict[str, str] = {"kafka.sasl.mechanism": sasl.mechanism}
    if sasl.mechanism == "OAUTHBEARER":
        options |= {
            "kafka.sasl.login.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "kafka.sasl.oauthbearer.token.endpoint.url": _token_url(sasl),
        }
        words = {f"extension_{name}": value for name, value in sasl.extensions.items()}
        if sasl.token is not None and sasl.token.oauth is not None:
            words |= _client(sasl.token.oauth)
    else:
        assert sasl.username is not None
        assert sasl.password is not None
        words = {"username": sasl.username, "password": sasl.password.get_secret_value()}
    login = " ".join([_LOGIN_MODULES[sasl.mechanism], "required", *(f"{it}={_quoted(words[it])}" for it in words)])
    return options | {"kafka.sasl.jaas.config": f"{login};"}


def _tls_options(tls: TlsSettings) -> dict[str, str]:
    if not tls.verify:
        raise ConfigError(
            "kafka.tls.verify is false, but Spark's Kafka client always checks the broker's certificate: name its"
            " authority (or the self-signed certificate itself) in kafka.tls.ca_file."
        )
    if tls.server_name is not None:
        raise ConfigError(
            f"kafka.tls.server_name is {tls.server_name!r}, but Spark's Kafka client checks the certificate against the"
            " host names the brokers advertise and can be told no other: correct the certificate or the brokers'"
            " advertised.listeners."
        )
    options = {"kafka.ssl.enabled.protocols": "TLSv1.3" if tls.minimum_version == "1.3" else "TLSv1.3,TLSv1.2"}
    if tls.ca_file is not None:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": _read_pem(tls.ca_file, "kafka.tls.ca_file"),
        }
    if tls.certificate_file is not None:
        chain = _read_pem(tls.certificate_file, "kafka.tls.certificate_file")
        key = chain if tls.key_file is None else _read_pem(tls.key_file, "kafka.tls.key_file")
        options |= {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": _blocks(chain, "CERTIFICATE"),
            "kafka.ssl.keystore.key": _pkcs8_key(key, tls.key_file or tls.certificate_file),
        }
        if tls.key_password is not None:
            options["kafka.ssl.key.password"] = tls.key_password.get_secret_value()
    return options


def _blocks(text: str, kind: str) -> str:  # a file may hold the certificates and the key together
    return "\n".join(re.findall(rf"-----BEGIN {kind}-----.*?-----END {kind}-----", text, re.DOTALL))


def _pkcs8_key(text: str, path: Path) -> str:
    if key := _blocks(text, "PRIVATE KEY") or _blocks(text, "ENCRYPTED PRIVATE KEY"):
        return key
    raise ConfigError(
        f"The private key in {str(path)!r} is not in the PKCS #8 form that Spark's Kafka client reads (BEGIN PRIVATE"
        f" KEY or BEGIN ENCRYPTED PRIVATE KEY). Convert it: openssl pkcs8 -topk8 -nocrypt -in {path} -out {path}.pkcs8"
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n")
    return f'"{escaped}"'


def _token_url(sasl: SaslSettings) -> str:  # of a file, too
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


def _client(oauth: OAuthSettings) -> dict[str, str]:  # options of the login module
    where = "kafka.sasl.token.oauth"
    unknown = {
        "audience": oauth.audience,
        "parameters": oauth.parameters,
        'client_authentication = "post"': oauth.client_authentication == "post",
        "tls.certificate_file": oauth.tls.certificate_file,
        "tls.server_name": oauth.tls.server_name,
        "tls.verify = false": not oauth.tls.verify,
    }
    if given := next(filter(unknown.get, unknown), None):
        raise ConfigError(
            f"{where}.{given} is given, but Spark's Kafka client cannot do that when it fetches a token: let the job"
            " read one from a file that something else keeps fresh (kafka.sasl.token.file)."
        )
    assert oauth.client_secret is not None, "without a certificate there is a secret"
    words = {"clientId": oauth.client_id, "clientSecret": oauth.client_secret.get_secret_value()}
    if oauth.scope:
        words["scope"] = oauth.scope
    if oauth.tls.ca_file is not None:
        certificates = _read_pem(oauth.tls.ca_file, f"{where}.tls.ca_file")
        words |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificates}
    return words


def _read_pem(path: Path, setting: str) -> str:
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
