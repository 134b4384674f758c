"""The gateway that runs with these settings, if one does: what it says of itself comes before what is tried here."""

from __future__ import annotations

__all__ = ["RunningFacts", "find", "gather", "judge_running"]

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from config.error_words import words
from config.errors import ConfigError, ExitStatus
from gateway.data_dir.directory import holder, slots_with_files
from gateway.http.asking import address_of, ask
from gateway.supervisor.place import find_supervisor
from gateway.tools.doctor.threads import call
from gateway.tools.doctor.wording import many, some

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from config.settings import HttpSettings
    from gateway.tools.doctor.model import Findings

_UNAVAILABLE: Final = {
    "broker-silent",
    "partition-silent",
    "partition-leaderless",
    "kafka-unreachable",
    "mqtt-disconnected",
    "worker-down",
}


@dataclass(frozen=True, slots=True)
class RunningFacts:
    """``workers`` are their processes by slot. ``status`` is the /status document, ``problem`` why there is none."""

    supervisor: int | None = None
    workers: dict[int, int] | None = None
    status: dict[str, Any] | None = None
    problem: str = ""
    refused: bool = False

    @property
    def pids(self) -> list[int]:
        """Every process of it."""
        own = [] if self.supervisor is None else [self.supervisor]
        return own + list((self.workers or {}).values())

    @property
    def runs(self) -> bool:
        return bool(self.pids)

    @property
    def rate(self) -> float | None:
        """Messages a second that it receives; None when it does not say."""
        found = 0.0
        told = False
        for document in _documents(self.status):
            rates = document.get("rates")
            if isinstance(rates, dict) and isinstance(rates.get("received_per_second"), int | float):
                found, told = found + rates["received_per_second"], True
        return found if told else None


def find(directory: Path) -> RunningFacts:
    """Which processes hold the data directory. Takes no lock; blocks for some small files."""
    try:
        slots = sorted(slots_with_files(directory))
        workers = {slot: pid for slot in slots if (pid := holder(directory, slot)) is not None}
        return RunningFacts(find_supervisor(directory), workers)
    except OSError as error:
        return RunningFacts(problem=words(error))


async def gather(found: RunningFacts, http: HttpSettings, timeout_s: float) -> RunningFacts:
    """What it says on its HTTP port."""
    if not found.runs:
        return found
    if http.port == 0:
        return _with(found, "http.port is 0, so nobody knows where it listens; its log says it.")
    where = f"{'http' if http.tls is None else 'https'}://{address_of(http)}/status"
    try:
        status, body = await call(lambda: ask(http, "/status", timeout_s=timeout_s), 2 * timeout_s)
    except TimeoutError:
        return _with(found, f"{where} has not answered within {timeout_s:g} s.")
    except OSError as error:
        return _with(found, f"{where} cannot be asked: {words(error)}.")
    except ConfigError as error:
        return _with(found, str(error))
    if status in {401, 403}:
        return _with(found, f"{where} wants another http.token, or a client certificate ({status}).", refused=True)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if status != 200 or not isinstance(document, dict):
        return _with(found, f"{where} answers with status {status}, and not as a gateway does.")
    return RunningFacts(found.supervisor, found.workers, document)


def _with(found: RunningFacts, problem: str, *, refused: bool = False) -> RunningFacts:
    return RunningFacts(found.supervisor, found.workers, None, problem, refused)


def judge_running(findings: Findings, facts: RunningFacts, directory: Path) -> None:
    """Its own problems, first as it orders them."""
    if not facts.runs:
        findings.skip("process", f"No gateway runs on {directory.absolute()}; everything else was tried from here.")
        return
    what = [] if facts.supervisor is None else [f"supervisor {facts.supervisor}"]
    what += [f"worker {slot} is process {pid}" for slot, pid in sorted((facts.workers or {}).items())]
    findings.ok("process", f"It runs: {some(what)}.", supervisor=facts.supervisor, workers=facts.workers)
    if facts.status is None:
        if facts.refused:
            findings.skip("status", f"Not looked at: {facts.problem}")
        else:
            findings.fail(
                "status",
                f"It runs and does not answer on its HTTP port: {facts.problem}",
                "Is http.port the one it was started with? Else its event loop stands still: see its log, and restart "
                "it (gateway restart).",
                status=ExitStatus.UNAVAILABLE,
            )
        return
    _judge_status(findings, facts.status)


def _judge_status(findings: Findings, status: dict[str, Any]) -> None:
    problems = list(_problems(status))
    for one in problems:
        critical = one.get("severity") == "critical"
        name, text = str(one.get("id", "problem")), str(one.get("text", ""))
        fix = f"{one.get('check') or ''} (docs/runbook.md#{name})".strip()
        if critical:
            state = ExitStatus.UNAVAILABLE if name in _UNAVAILABLE else ExitStatus.FAILED
            findings.fail(name, text, fix, status=ExitStatus.REFUSED if name == "acl-refused" else state)
        else:
            findings.warn(name, text, fix)
    reasons = [str(reason) for document in _documents(status) for reason in document.get("reasons", ())]
    if status.get("ready"):
        rest = "" if problems else ", and names no problem"
        findings.ok("ready", f"It is {status.get('state')} and ready{rest}.", state=status.get("state"))
    elif not problems:
        findings.fail(
            "ready",
            f"It is {status.get('state')} and not ready: {some(reasons) or 'a worker does not answer'}.",
            "See /status and its log.",
            status=ExitStatus.UNAVAILABLE,
        )
    told = {one.get("subject") for one in problems if one.get("id") == "worker-down"}
    down = [one for one in status.get("workers", ()) if isinstance(one, dict) and not one.get("up")]
    for one in down:
        if f"worker {one.get('worker')}" in told:
            continue
        findings.fail(
            "worker-down",
            f"Worker {one.get('worker')} does not answer ({one.get('problem') or 'no reason known'}).",
            "See its log; the supervisor starts it again (docs/runbook.md#worker-down).",
            status=ExitStatus.UNAVAILABLE,
        )
    orphans = [one for document in _documents(status) for one in document.get("orphan_sessions", ())]
    if orphans and not any(one.get("id") == "orphan-sessions" for one in problems):
        findings.warn(
            "orphan-sessions",
            f"{many(len(orphans), 'session')} of earlier settings are still being emptied and ended: "
            f"{some(one.get('client_id') for one in orphans)}.",
            "Wait; one that stays says why in /status.",
        )


def _problems(status: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The supervisor's own list where it has one, else its workers'."""
    listed = status.get("problems")
    documents = [status] if isinstance(listed, list) else list(_documents(status))
    for document in documents:
        for one in document.get("problems") or ():
            if isinstance(one, dict):
                yield one


def _documents(status: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The workers' documents; the one there is where no supervisor is."""
    if status is None:
        return []
    workers = status.get("workers")
    return [one for one in workers if isinstance(one, dict)] if isinstance(workers, list) else [status]
