"""The gateway's own tokens: made from settings, renewed, and closed at the end.

An HTTP client costs a start 0.3 s and 10 MiB, so nothing is loaded where no setting asks for a token.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from bridge.certificate import Validity
from bridge.kafka.login import KafkaLogin
from bridge.ports import Credential, CredentialSource
from config.settings import KafkaSettings, Settings, TokenSettings
from gateway.base.metrics import Metrics
from gateway.mqtt.login import Shown
from gateway.mqtt.session import Session


class Outward:
    """A component of the service. It starts before every connection and stops after the last one.

    ``mqtt`` and ``kafka`` are the sources of ``mqtt.token`` and ``kafka.sasl.token``; None without such a setting.
    """

    name: Final = "credentials"

    def __init__(self, settings: Settings) -> None:
        sasl = settings.kafka.sasl
        self.mqtt = _source(settings.mqtt.token, "mqtt.token")
        self.kafka = _source(None if sasl is None else sasl.token, "kafka.sasl.token")

    @property
    def sources(self) -> dict[str, CredentialSource]:
        """The present sources, by the side that uses them."""
        both = {"mqtt": self.mqtt, "kafka": self.kafka}
        return {side: source for side, source in both.items() if source is not None}

    async def start(self) -> None:
        """Returns at once; raises ConfigError when no token can ever come."""
        for source in self.sources.values():
            await source.start()

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - there is nothing to wait for
        for source in self.sources.values():
            await source.close()


@contextlib.asynccontextmanager
async def kafka_login(settings: KafkaSettings) -> AsyncIterator[KafkaLogin]:
    """The Kafka login of a command, with a source of tokens while the block runs."""
    source = _source(None if settings.sasl is None else settings.sasl.token, "kafka.sasl.token")
    login = KafkaLogin(settings, source)
    if source is None:
        yield login
        return
    await source.start()
    try:
        yield login
    finally:
        await source.close()


def watch_outward(
    metrics: Metrics,
    outward: Outward,
    sessions: Sequence[Session],
    kafka: KafkaLogin,
    brokers: Callable[[], Iterable[Validity]],
) -> None:
    """Show as metrics when credentials and certificates expire, and how often no new token came.

    ``brokers`` gives Kafka's certificates.
    """
    for side, source in outward.sources.items():
        metrics.token_failures.watch(partial(_failures, source), side)

    def shown() -> Iterator[Shown]:
        return (session.shown for session in sessions if session.shown is not None)

    expiry = metrics.credential_expiry
    expiry.watch(lambda: min((_ends_s(one.credential) for one in shown()), default=0.0), "mqtt_token")

    def certificates() -> Iterator[Validity]:
        """The certificates of all sessions. Refused ones too: an expired certificate may be the reason."""
        for session in sessions:
            if session.last_shown is not None and session.last_shown.certificate is not None:
                yield session.last_shown.certificate

    expiry.watch(lambda: _first(certificates()), "mqtt_certificate")
    expiry.watch(lambda: _ends_s(kafka.shown), "kafka_token")
    expiry.watch(lambda: 0.0 if kafka.certificate is None else kafka.certificate.ends_s, "kafka_certificate")
    expiry.watch(lambda: _first(session.server_certificate for session in sessions), "mqtt_server_certificate")
    expiry.watch(lambda: _first(brokers()), "kafka_server_certificate")


def _first(certificates: Iterable[Validity | None]) -> float:
    """The earliest end; 0 without any."""
    return min((one.ends_s for one in certificates if one is not None), default=0.0)


def _failures(source: CredentialSource) -> int:
    return source.failures


def _ends_s(credential: Credential | None) -> float:
    """In seconds since 1970; 0 when the expiry is unknown."""
    if credential is None or credential.expires_at_ns is None:
        return 0.0
    return time.time() + (credential.expires_at_ns - time.monotonic_ns()) / 1e9


def _source(settings: TokenSettings | None, where: str) -> CredentialSource | None:
    """The source of a side's tokens; ``where`` is the setting that errors name. None without tokens."""
    if settings is None:
        return None
    from auth.outward.tokens import token_source

    return token_source(settings, where)
