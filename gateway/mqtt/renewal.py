"""Sessions connect again before what they have shown to the broker expires: one at a time, in good order.

A broker that looks at a token's expiry ends the connection then (EMQX does), with messages unacknowledged on it and all
sessions at once. So, as soon as there is another token, or another certificate when the old one is near its end, each
session in turn acknowledges what it has, disconnects, and is back in the next moment; the broker keeps what comes
meanwhile. While one is away, all others stay: a new token that the broker does not take costs one session at most.
"""

from __future__ import annotations

__all__ = ["Renewals", "margin_s", "why_renew"]

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Final, Literal, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bridge.certificate import Validity
    from bridge.ports import Credential
    from gateway.base.metrics import Metrics
    from gateway.mqtt.login import Login, Shown

log = structlog.get_logger("mqtt")

Reason = Literal["token", "certificate"]

CHECK_S: Final = 30.0  # between two looks at the certificate's file, and at sessions that were missed
SPREAD_S: Final = 30.0  # within which workers begin, each at a moment of its own
SETTLE_S: Final = 10.0  # for acknowledging what a session has; a Kafka that takes longer has other troubles
_RETRY_S: Final = 5.0
_LONGEST_MARGIN_S: Final = 86_400.0


class Renewable(Protocol):
    """A session (``gateway.mqtt.session.Session``)."""

    name: str
    standing: asyncio.Event

    @property
    def shown(self) -> Shown | None:
        """What the present connection has shown."""

    async def renew(self, patience_s: float) -> bool:
        """Connect anew in good order; whether that was begun."""


def margin_s(certificate: Validity) -> float:
    """How long before its end a certificate is replaced: a tenth of its life, a day at most."""
    return min((certificate.ends_s - certificate.begins_s) / 10, _LONGEST_MARGIN_S)


def why_renew(
    shown: Shown, credential: Credential | None, certificate: Validity | None, now_s: float, *, early: float = 1.0
) -> Reason | None:
    """Why a session that has shown this should connect again, given what it would show now; None: there is no need.

    ``now_s`` is in seconds since 1970; ``early`` stretches the margin before a certificate's end."""
    if shown.credential is not None and credential is not None and credential.number > shown.credential.number:
        return "token"
    old = shown.certificate
    if old is None or certificate is None or now_s < old.ends_s - early * margin_s(old):
        return None
    return "certificate" if certificate.ends_s > old.ends_s else None


class Renewals:
    """A component of the service, beside the sessions that it renews."""

    name: Final = "renewals"

    def __init__(self, login: Login, sessions: Callable[[], Iterable[Renewable]], metrics: Metrics) -> None:
        self._login = login
        self._sessions = sessions
        self._metrics = metrics
        self._early = random.uniform(1.0, 1.2)  # noqa: S311 - for spreading workers, not for secrets
        self._begin_ns = 0  # not before this moment, when a new token has come
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None

    async def start(self) -> None:
        """Does nothing where there is nothing to renew."""
        if not self._login.expires:
            return
        if self._login.tokens is not None:
            self._unwatch = self._login.tokens.watch(self._told)
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - there is nothing to wait for
        """A session that is just away comes back by itself, or is stopped by its own stop."""
        if self._unwatch is not None:
            self._unwatch()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _told(self, credential: Credential) -> None:
        """A new token: before the first of the old ones ends, with some time to spare, but not all workers at once."""
        del credential
        spread_s = SPREAD_S
        shown = [one.shown.credential for one in self._sessions() if one.shown is not None]
        ends_ns = min((one.expires_at_ns for one in shown if one is not None and one.expires_at_ns), default=None)
        if ends_ns is not None:
            spread_s = min(SPREAD_S, max(0.0, (ends_ns - time.monotonic_ns()) / 4e9))
        wait_s = random.uniform(0, spread_s)  # noqa: S311 - for spreading workers, not for secrets
        self._begin_ns = time.monotonic_ns() + round(wait_s * 1e9)
        self._woken.set()

    async def _run(self) -> None:
        wait_s = CHECK_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            self._woken.clear()
            await asyncio.sleep(max(0, self._begin_ns - time.monotonic_ns()) / 1e9)
            wait_s = CHECK_S if await self._round() else _RETRY_S

    async def _round(self) -> bool:
        """Renew whatever needs it; whether all of that was done."""
        done = True
        certificate, credential = self._login.look_at_certificate(), await self._login.token()
        for session in tuple(self._sessions()):
            shown = session.shown
            if shown is None:
                continue  # it connects just now, or will, with what is good by then
            reason = why_renew(shown, credential, certificate, time.time(), early=self._early)
            if reason is not None:
                done = await self._renew(session, reason) and done
            elif _about_to_end(shown, self._early):
                log.warning(
                    "mqtt_certificate_expires",
                    ends_s=shown.certificate.ends_s if shown.certificate is not None else None,
                    consequence="the broker may refuse the next connection; put a new one into "
                    "mqtt.tls.certificate_file, it is found there",
                    repeat_key="certificate",
                )
        return done

    async def _renew(self, session: Renewable, reason: Reason) -> bool:
        began_ns = time.monotonic_ns()
        renewed = await session.renew(SETTLE_S)
        result = "renewed" if renewed else "postponed"
        self._metrics.mqtt_renewals.child(reason, result).value += 1
        if not renewed:
            log.warning(
                "mqtt_renewal_postponed",
                session=session.name,
                reason=reason,
                cause="not everything could be acknowledged in time, or the connection broke",
                repeat_key=session.name,
            )
            return False
        # However long that takes: as long as this one is not taken back, the others had better stay.
        await session.standing.wait()
        away_ms = (time.monotonic_ns() - began_ns) // 1_000_000
        log.info("mqtt_session_renewed", session=session.name, reason=reason, took_ms=away_ms)
        return True


def _about_to_end(shown: Shown, early: float) -> bool:
    certificate = shown.certificate
    return certificate is not None and time.time() > certificate.ends_s - early * margin_s(certificate)
