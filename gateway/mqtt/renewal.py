"""Sessions connect again before their credentials expire, one at a time.

EMQX ends a connection when its token expires: all sessions at once, with unacknowledged messages. So each session
connects again as soon as there is a new token, or a new certificate near the end of the old one. It acknowledges its
messages, disconnects and connects; the broker keeps its queue meanwhile. All others stay connected, so a new token that
the broker refuses costs one session at most.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal

import structlog

from bridge.waiting import end_tasks, until_set

if TYPE_CHECKING:
    from bridge.certificate import Validity
    from bridge.ports import Credential
    from gateway.base.metrics import Metrics
    from gateway.mqtt.login import Login, Shown
    from gateway.mqtt.session import Session

log = structlog.get_logger("mqtt")

Reason = Literal["token", "certificate"]

CHECK_S: Final = 30.0  # between two checks of the certificate's file, and of postponed sessions
SPREAD_S: Final = 30.0  # within which workers begin, each at a moment of its own
SETTLE_S: Final = 10.0  # for acknowledging a session's messages; a slower Kafka has its own problems
_RETRY_S: Final = 5.0
_LONGEST_MARGIN_S: Final = 86_400.0


def margin_s(certificate: Validity) -> float:
    """How long before its end a certificate is replaced: a tenth of its life, a day at most."""
    return min((certificate.ends_s - certificate.begins_s) / 10, _LONGEST_MARGIN_S)


def why_renew(
    shown: Shown, credential: Credential | None, certificate: Validity | None, now_s: float, *, early: float = 1.0
) -> Reason | None:
    """Why a session with these credentials should connect again, given the present two; None if it need not.

    ``now_s`` is in seconds since 1970; ``early`` stretches the margin before a certificate's end.
    """
    if shown.credential is not None and credential is not None and credential.number > shown.credential.number:
        return "token"
    old = shown.certificate
    if old is None or certificate is None or now_s < old.ends_s - early * margin_s(old):
        return None
    return "certificate" if certificate.ends_s > old.ends_s else None


class Renewals:
    """A component of the service, beside the sessions that it renews."""

    name: Final = "renewals"

    def __init__(self, login: Login, sessions: Callable[[], Iterable[Session]], metrics: Metrics) -> None:
        self._login = login
        self._sessions = sessions
        self._metrics = metrics
        self._early = random.uniform(1.0, 1.2)  # noqa: S311 - for spreading workers, not for secrets
        self._begin_ns = 0  # not before this moment (monotonic), when a new token has come
        self._woken = asyncio.Event()  # a new token has come
        self._task: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None  # ends the calls of ``_told``

    async def start(self) -> None:
        """Does nothing without expiring credentials."""
        if not self._login.expires:
            return
        if self._login.tokens is not None:
            self._unwatch = self._login.tokens.watch(self._told)
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - there is nothing to wait for
        """A session that is connecting again finishes by itself, or its own stop ends it."""
        if self._unwatch is not None:
            self._unwatch()
        await end_tasks(self._task)

    def _told(self, credential: Credential) -> None:
        """A new token: choose when to begin, before the first old token expires, and not with all workers at once."""
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
        """Do a round every CHECK_S, sooner after a failure or with a new token, until cancelled."""
        wait_s = CHECK_S
        while True:
            await until_set(self._woken, wait_s)
            self._woken.clear()
            await asyncio.sleep(max(0, self._begin_ns - time.monotonic_ns()) / 1e9)
            try:
                done = await self._round()
            except Exception:  # a defect must not end the renewals: all sessions would expire at once
                log.exception("mqtt_renewal_defect")
                done = False
            wait_s = CHECK_S if done else _RETRY_S

    async def _round(self) -> bool:
        """Renew every session that needs it; whether all of that succeeded."""
        done = True
        certificate, credential = self._login.look_at_certificate(), await self._login.token()
        for session in tuple(self._sessions()):
            shown = session.shown
            if shown is None:
                continue  # it is connecting, or will, with the credentials of that time
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

    async def _renew(self, session: Session, reason: Reason) -> bool:
        """Connect a session again and wait until it is subscribed; False if it could not be begun in time."""
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
        # Without a limit: as long as the broker refuses this one, the others stay connected.
        await session.standing.wait()
        away_ms = (time.monotonic_ns() - began_ns) // 1_000_000
        log.info("mqtt_session_renewed", session=session.name, reason=reason, took_ms=away_ms)
        return True


def _about_to_end(shown: Shown, early: float) -> bool:
    certificate = shown.certificate
    return certificate is not None and time.time() > certificate.ends_s - early * margin_s(certificate)
