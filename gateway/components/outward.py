"""The tokens with which the gateway proves itself, made from settings, kept fresh, and let go of at the end.

Nothing of it is loaded where no setting asks for a token: an HTTP client costs a start 0.3 s and 10 MiB.
"""

from __future__ import annotations

__all__ = ["Outward", "kafka_login", "watch_outward"]

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from bridge.kafka.login import KafkaLogin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from bridge.certificate import Validity
    from bridge.ports import Credential, CredentialSource
    from config.settings import KafkaSettings, Settings, TokenSettings
    from gateway.base.metrics import Metrics
    from gateway.mqtt.login import Shown
    from gateway.mqtt.session import Session


class Outward:
    """A component of the service, started before what connects anywhere and stopped after it.

    ``mqtt`` and ``kafka`` are where ``mqtt.token`` and ``kafka.sasl.token`` come from; None where there is no such
    setting.
    """

    name: Final = "credentials"

    def __init__(self, settings: Settings) -> None:
        sasl = settings.kafka.sasl
        self.mqtt = _source(settings.mqtt.token, "mqtt.token")
        self.kafka = _source(None if sasl is None else sasl.token, "kafka.sasl.token")

    @property
    def sources(self) -> dict[str, CredentialSource]:
        """Those there are, by the side that shows them."""
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
    """For a command that connects to Kafka and ends: its login, with a source of tokens while the block runs."""
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
    """Have the metrics say when what is shown expires, by us and by the servers, and how often there was no other.
    ``brokers`` gives Kafka's certificates."""
    for side, source in outward.sources.items():
        metrics.token_failures.watch(partial(_failures, source), side)

    def shown() -> Iterator[Shown]:
        return (session.shown for session in sessions if session.shown is not None)

    expiry = metrics.credential_expiry
    expiry.watch(lambda: min((_ends_s(one.credential) for one in shown()), default=0.0), "mqtt_token")

    def certificates() -> Iterator[Validity]:
        """Also of who is not let in: that may be because it has expired."""
        for session in sessions:
            if session.last_shown is not None and session.last_shown.certificate is not None:
                yield session.last_shown.certificate

    expiry.watch(lambda: _first(certificates()), "mqtt_certificate")
    expiry.watch(lambda: _ends_s(kafka.shown), "kafka_token")
    expiry.watch(lambda: 0.0 if kafka.certificate is None else kafka.certificate.ends_s, "kafka_certificate")
    expiry.watch(lambda: _first(session.server_certificate for session in sessions), "mqtt_server_certificate")
    expiry.watch(lambda: _first(brokers()), "kafka_server_certificate")


def _first(certificates: Iterable[Validity | None]) -> float:
    """When the first of them ends; 0 without any."""
    return min((one.ends_s for one in certificates if one is not None), default=0.0)


def _failures(source: CredentialSource) -> int:
    return source.failures


def _ends_s(credential: Credential | None) -> float:
    """In seconds since 1970; 0 when nobody can tell."""
    if credential is None or credential.expires_at_ns is None:
        return 0.0
    return time.time() + (credential.expires_at_ns - time.monotonic_ns()) / 1e9


def _source(settings: TokenSettings | None, where: str) -> CredentialSource | None:
    if settings is None:
        return None
    from auth.outward.tokens import token_source

    return token_source(settings, where)
