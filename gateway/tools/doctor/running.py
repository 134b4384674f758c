"""Facts and verdicts from the running gateway of these settings, if there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from config.error_words import words
from config.errors import ConfigError, ExitStatus
from config.numbers import many, some
from gateway.base.problem import Problem
from gateway.data_dir.directory import holder, slots_with_files
from gateway.http.asking import address_of, ask
from gateway.supervisor.cpu import worker_count
from gateway.supervisor.place import find_supervisor
from gateway.tools.doctor.threads import call

if TYPE_CHECKING:
    from config.settings import HttpSettings, Settings
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
    """``workers`` are process ids by slot. ``status`` is the /status document, ``problem`` the reason for none."""

    supervisor: int | None = None
    workers: dict[int, int] | None = None
    status: dict[str, Any] | None = None
    problem: str = ""
    refused: bool = False

    @property
    def pids(self) -> list[int]:
        own = [] if self.supervisor is None else [self.supervisor]
        return own + list((self.workers or {}).values())

    @property
    def runs(self) -> bool:
        return bool(self.pids)

    def worker_count(self, settings: Settings) -> int:
        """The number of workers: of the running gateway, whether each runs now or not, else by the settings."""
        listed = (self.status or {}).get("workers")
        return len(listed if isinstance(listed, list) else self.workers or ()) or worker_count(settings) or 1

    @property
    def rate(self) -> float | None:
        """Received messages a second; None if unknown."""
        found = 0.0
        told = False
        for document in _documents(self.status):
            rates = document.get("rates")
            if isinstance(rates, dict) and isinstance(rates.get("received_per_second"), int | float):
                found, told = found + rates["received_per_second"], True
        return found if told else None


def find(directory: Path) -> RunningFacts:
    """The processes that hold the data directory. Takes no lock; blocks for some small files."""
    try:
        slots = sorted(slots_with_files(directory))
        workers = {slot: pid for slot in slots if (pid := holder(directory, slot)) is not None}
        return RunningFacts(find_supervisor(directory), workers)
    except ConfigError as error:
        return RunningFacts(problem=str(error))


async def gather(found: RunningFacts, http: HttpSettings, timeout_s: float) -> RunningFacts:
    """Add the answer of the gateway's HTTP port, or why there is none."""
    if not found.runs:
        return found
    if http.port == 0:
        return replace(found, problem="http.port is 0, so nobody knows where it listens; its log says it.")
    where = f"{'http' if http.tls is None else 'https'}://{address_of(http)}/status"
    try:
        status, body = await call(lambda: ask(http, "/status", timeout_s=timeout_s), 2 * timeout_s)
    except TimeoutError:
        return replace(found, problem=f"{where} has not answered within {timeout_s:g} s.")
    except OSError as error:
        return replace(found, problem=f"{where} cannot be asked: {words(error)}.")
    except ConfigError as error:
        return replace(found, problem=str(error))
    if status in {401, 403}:
        return replace(
            found, problem=f"{where} wants another http.token, or a client certificate ({status}).", refused=True
        )
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if status != 200 or not isinstance(document, dict):
        return replace(found, problem=f"{where} answers with status {status}, and not as a gateway does.")
    return replace(found, status=document)


def judge_running(findings: Findings, facts: RunningFacts, directory: Path) -> None:
    """Checks of the running gateway, with its own problems in their order."""
    if not facts.runs:
        text = f"No gateway runs on {directory.absolute()}"
        if facts.problem:
            text = f"Whether a gateway runs is unknown: {facts.problem.removesuffix('.')}"
        findings.of("process").skip(f"{text}; everything else was tried from here.")
        return
    what = [] if facts.supervisor is None else [f"supervisor {facts.supervisor}"]
    what += [f"worker {slot} is process {pid}" for slot, pid in sorted((facts.workers or {}).items())]
    findings.of("process").ok(f"It runs: {some(what)}.", supervisor=facts.supervisor, workers=facts.workers)
    if facts.status is None:
        if facts.refused:
            findings.of("status").skip(f"Not looked at: {facts.problem}")
        else:
            findings.of("status").fail(
                f"It runs and does not answer on its HTTP port: {facts.problem}",
                "Is http.port the one it was started with? Else its event loop stands still: see its log, and restart "
                "it (gateway restart).",
                status=ExitStatus.UNAVAILABLE,
            )
        return
    _judge_status(findings, facts.status)


def _judge_status(findings: Findings, status: dict[str, Any]) -> None:
    """Take over the problems of the gateway's /status; judge its readiness, silent workers and orphan sessions."""
    problems = list(_problems(status))
    for problem in map(Problem.from_dict, problems):
        exit_status = ExitStatus.UNAVAILABLE if problem.id in _UNAVAILABLE else ExitStatus.FAILED
        if problem.id == "acl-refused":
            exit_status = ExitStatus.REFUSED
        findings.of(problem.id).problem(problem, status=exit_status)
    reasons = [str(reason) for document in _documents(status) for reason in document.get("reasons", ())]
    if status.get("ready"):
        rest = "" if problems else ", and names no problem"
        findings.of("ready").ok(f"It is {status.get('state')} and ready{rest}.", state=status.get("state"))
    elif not any(one.get("severity") == "critical" for one in problems):
        findings.of("ready").fail(
            f"It is {status.get('state')} and not ready: {some(reasons) or 'a worker does not answer'}.",
            "See /status and its log.",
            status=ExitStatus.UNAVAILABLE,
        )
    told = {one.get("subject") for one in problems if one.get("id") == "worker-down"}
    down = [one for one in status.get("workers", ()) if isinstance(one, dict) and not one.get("up")]
    for one in down:
        if f"worker {one.get('worker')}" in told:
            continue
        findings.of("worker-down").fail(
            f"Worker {one.get('worker')} does not answer ({one.get('problem') or 'no reason known'}).",
            "See its log; the supervisor starts it again (docs/runbook.md#worker-down).",
            status=ExitStatus.UNAVAILABLE,
        )
    orphans = [one for document in _documents(status) for one in document.get("orphan_sessions", ())]
    if orphans and not any(one.get("id") == "orphan-sessions" for one in problems):
        findings.of("orphan-sessions").ok(
            f"{many(len(orphans), 'session')} of earlier settings are being drained and ended: "
            f"{some(one.get('client_id') for one in orphans)}."
        )


def _problems(status: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The supervisor's list of problems, else the workers'."""
    listed = status.get("problems")
    documents = [status] if isinstance(listed, list) else list(_documents(status))
    for document in documents:
        for one in document.get("problems") or ():
            if isinstance(one, dict):
                yield one


def _documents(status: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The workers' documents; without a supervisor the only one."""
    if status is None:
        return []
    workers = status.get("workers")
    return [one for one in workers if isinstance(one, dict)] if isinstance(workers, list) else [status]
