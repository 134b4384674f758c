"""The answers of a supervisor's HTTP port, collected from its workers at each request."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any, Final

from gateway.base.problem import Problem
from gateway.base.reload_state import ConfigState
from gateway.http.answers import TEXT_METRICS, Answer, Answers
from gateway.supervisor.exposition import merge, text_of
from gateway.supervisor.fleet import Fleet
from gateway.supervisor.fleet_status import SILENT_NS, merged, summed, worker_problem
from gateway.supervisor.metrics import ProcessMetrics, SupervisorMetrics
from gateway.supervisor.slot import Slot

_OWN_NAME: Final = "supervisor"  # the label ``worker`` of this process's own process_* metrics


class FleetAnswers(Answers):
    """``doing`` is the supervisor's state in a word, ``config`` the part of /status on settings. A worker that does not
    answer in time is left out: two seconds at most."""

    def __init__(
        self,
        fleet: Fleet,
        metrics: SupervisorMetrics,
        doing: Callable[[], str],
        config: ConfigState | None = None,
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._process = ProcessMetrics()
        self._doing = doing
        self._unanswered: dict[int, int] = {}  # by worker the time of its first unanswered request for /status
        self._problems: dict[int, tuple[int | None, list[Any]]] = {}  # by slot: process id and last known problems
        self._config = config or ConfigState(None)

    def health(self) -> dict[str, object]:
        return {"state": self._doing(), "workers": len(self._fleet.slots)}

    async def _ask(self, path: str, accept: str = "") -> list[tuple[Slot, Answer | None]]:
        slots = list(self._fleet.slots.values())
        workers = [slot.current for slot in slots]
        answers = await asyncio.gather(*(_ask_one(worker, path, accept) for worker in workers))
        return list(zip(slots, answers, strict=True))

    async def metrics(self, accept: str) -> Answer:
        """The exposition of the supervisor and of all workers that answer; ``accept`` is the request's header."""
        answers, retirees = await asyncio.gather(self._ask("/metrics", accept), self._ask_retirees("/metrics", accept))
        metrics, fleet = self._metrics, self._fleet
        metrics.workers.child().value = len(fleet.slots)
        metrics.slots_retiring.child().value = len(fleet.retiring)
        metrics.worker_up.watch_rows(lambda: {(str(slot.number),): int(answer is not None) for slot, answer in answers})
        metrics.worker_restarts.watch_rows(lambda: {(str(slot.number),): slot.restarts for slot, _ in answers})
        found = [(str(slot.number), answer) for slot, answer in answers if answer is not None]
        found += [(str(slot), answer) for slot, answer in retirees]
        content_type = found[0][1].type if found else TEXT_METRICS  # a worker reads ``accept`` with prometheus_client
        openmetrics = content_type.startswith("application/openmetrics-text")
        texts = [
            (None, text_of(metrics, openmetrics=openmetrics)),
            (_OWN_NAME, text_of(self._process, openmetrics=openmetrics)),
            *((worker, answer.body) for worker, answer in found),
        ]
        return Answer(200, content_type, merge(texts))

    async def reasons(self) -> list[str]:
        """Why the instance is not ready, a sentence each; empty when it is."""
        reasons: list[str] = []
        for slot, answer in await self._ask("/readyz"):
            said = {} if answer is None else json.loads(answer.body)
            reasons += _why_not_ready(
                {"worker": slot.number, "up": answer is not None, "problem": slot.problem, **said}
            )
        return reasons

    async def status(self) -> dict[str, object]:
        """/status of the instance: what its workers say, summed up, and of each its own."""
        workers: list[dict[str, Any]] = []
        answers, leaving = await asyncio.gather(self._ask("/status"), self._ask_retirees("/status"))
        retirees = [
            {"worker": slot, "problems": json.loads(answer.body).get("problems", [])} for slot, answer in leaving
        ]
        for slot, answer in answers:
            said = {} if answer is None else json.loads(answer.body)
            pid = slot.current.pid if slot.current is not None else None
            own = {"worker": slot.number, "pid": pid, "up": answer is not None, "restarts": slot.restarts}
            workers.append({**own, "problem": slot.problem, **said})
        up = [worker for worker in workers if worker["up"]]
        found = [*self._worker_problems(workers), *self._config.problems()]
        ages = [age for worker in up if (age := worker["oldest_unacked_age_seconds"]) is not None]
        return {
            "state": self._doing(),
            "pid": os.getpid(),
            "ready": len(up) == len(workers) and all(worker["ready"] for worker in up),
            "reasons": [reason for worker in workers for reason in _why_not_ready(worker)],
            "unacked": sum(worker["unacked"] for worker in up),
            "oldest_unacked_age_seconds": max(ages, default=None),
            "ledger": summed([worker["ledger"] for worker in up]),
            "routes": _sum_routes([worker["routes"] for worker in up]),
            "slots_retiring": self._fleet.retiring,
            **merged(up, found, [*self._late(workers), *retirees]),
            "config": self._config.as_dict(),
            # A worker's partitions are in the merged ones: 64 times 2000 of them would be 25 MB.
            "workers": [{name: value for name, value in worker.items() if name != "partitions"} for worker in workers],
        }

    async def _ask_retirees(self, path: str, accept: str = "") -> list[tuple[int, Answer]]:
        """Answers of workers whose slots are being retired: messages may wait in them."""
        retirees = self._fleet.retirees
        answers = await asyncio.gather(*(_ask_one(worker, path, accept) for worker in retirees))
        return [(one.slot, answer) for one, answer in zip(retirees, answers, strict=True) if answer is not None]

    def _late(self, workers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Workers without an answer in time, with their last known problems. Otherwise the page would show that all is
        well because a worker is busy. After ``SILENT_NS`` their silence is itself a problem."""
        self._problems |= {
            worker["worker"]: (worker["pid"], worker.get("problems", [])) for worker in workers if worker["up"]
        }
        now_ns, late = time.monotonic_ns(), []
        for worker in workers:
            pid, problems = self._problems.get(worker["worker"], (None, []))
            silent_ns = now_ns - self._unanswered.get(worker["worker"], now_ns)
            if not worker["up"] and pid == worker["pid"] is not None and silent_ns <= SILENT_NS:
                late.append({"worker": worker["worker"], "problems": problems})
        return late

    def _worker_problems(self, workers: list[dict[str, Any]]) -> list[Problem]:
        """The problems of the workers' processes. Notes since when each has not answered."""
        now_ns = time.monotonic_ns()
        up = {worker["worker"] for worker in workers if worker["up"]}
        self._unanswered = {
            number: self._unanswered.get(number, now_ns) for number in self._fleet.slots if number not in up
        }
        return [
            problem
            for slot in self._fleet.slots.values()
            if (problem := worker_problem(slot, now_ns, self._unanswered.get(slot.number))) is not None
        ]


async def _ask_one(worker: Any, path: str, accept: str) -> Answer | None:
    answer: Answer | None = await worker.ask(path, accept) if worker is not None else None
    return answer


def _why_not_ready(worker: dict[str, Any]) -> list[str]:
    """A worker's reasons with its number, or a sentence that it does not answer."""
    number = worker["worker"]
    if not worker["up"]:
        return [f"Worker {number} does not answer. {worker['problem'] or ''}".rstrip()]
    return [f"Worker {number}: {reason}" for reason in worker.get("reasons", ())]


def _sum_routes(workers: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """The counts of each route's messages, over all workers that answer."""
    names = dict.fromkeys(name for routes in workers for name in routes)
    return {name: summed([routes[name] for routes in workers if name in routes]) for name in names}
