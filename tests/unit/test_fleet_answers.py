"""What a supervisor's port says of its workers: one document, in which each of them can still be told."""

import asyncio
import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gateway.http.answers import Answer
from gateway.supervisor.answers import FleetAnswers
from gateway.supervisor.metrics import SupervisorMetrics
from tests import status_documents
from tests.unit.manual_time import manual_time

BUCKETS = {"p50": None, "p99": None, "buckets": []}


@dataclass
class Process:
    document: dict[str, Any] | None
    pid: int = 17

    async def ask(self, path: str, accept: str) -> Answer | None:
        return None if self.document is None else Answer(200, "application/json", json.dumps(self.document))


def fleet(slots: dict[int, Any]) -> Any:
    return SimpleNamespace(slots=slots, retiring=(), retirees=())


def slot(number: int, current: Process, problem: str | None = None) -> Any:
    return SimpleNamespace(number=number, current=current, problem=problem, restarts=0, ended_ns=0)


def worker(number: int) -> dict[str, Any]:
    document = copy.deepcopy(status_documents.quiet())
    document.update(worker=number, latency={"produce": BUCKETS, "end_to_end": BUCKETS})
    return document


async def status(*documents: dict[str, Any] | None, problem: str | None = None) -> dict[str, Any]:
    slots = {
        number: slot(number, Process(document), problem if document is None else None)
        for number, document in enumerate(documents)
    }
    answers = FleetAnswers(fleet(slots), SupervisorMetrics(), lambda: "running")
    found: dict[str, Any] = json.loads((await answers.answer("/status", "")).body)
    return found


@dataclass
class Scraped(Process):
    type: str = ""

    async def ask(self, path: str, accept: str) -> Answer | None:
        return Answer(200, self.type, "# TYPE a gauge\na 1.0\n# EOF\n")


async def test_metrics_have_the_format_that_the_workers_chose() -> None:
    async def scraped(*processes: Scraped) -> Answer:
        slots = {number: slot(number, process) for number, process in enumerate(processes)}
        return await FleetAnswers(fleet(slots), SupervisorMetrics(), lambda: "running").metrics("")

    both = await scraped(Scraped(None, type="application/openmetrics-text; version=1.0.0"))
    assert both.type == "application/openmetrics-text; version=1.0.0"
    assert 'a{worker="0"} 1.0\n' in both.body
    assert "# TYPE gateway_worker_restarts counter\n" in both.body
    assert 'process_open_fds{worker="supervisor"}' in both.body
    alone = await scraped()
    assert alone.type.startswith("text/plain")
    assert "# TYPE gateway_worker_restarts_total counter\n" in alone.body
    assert "gateway_workers 0.0\n" in alone.body


async def test_the_workers_are_one_gateway() -> None:
    document = await status(worker(0), worker(1))
    assert document["ready"] is True
    assert document["reasons"] == []
    assert document["ledger"]["received"] == 2 * status_documents.quiet()["ledger"]["received"]
    assert document["rates"]["received_per_second"] == 8426
    assert len(document["partitions"]) == 36
    assert [one["worker"] for one in document["workers"]] == [0, 1]
    assert not [one for one in document["workers"] if "partitions" in one], "they are told once"
    assert [one["partitions_total"] for one in document["workers"]] == [36, 36]


async def test_the_page_says_which_keys_are_at_the_top_and_which_in_each_worker() -> None:
    page = (Path(__file__).parents[2] / "docs/status.md").read_text()
    top, own = (
        set(re.findall(r"`([a-z_]+)[`.]", " ".join(re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE))))
        for table in page[page.index("## The document") : page.index("## A broker")].split("| in each worker's alone |")
    )
    document = await status(worker(0))
    assert set(document) - {"workers"} == top
    assert document["workers"][0].keys() - top <= own


async def test_spools_add_up_and_say_whose_problem_it_is() -> None:
    first, second = worker(0), worker(1)
    first["spool"].update(messages=3, bytes=100, spooling={"t": [1, 4]}, oldest_age_seconds=2.0)
    second["spool"].update(messages=5, bytes=50, spooling={"t": [4], "u": [0]}, problem="The disk is full.")
    assert (await status(first, second))["spool"] == {
        "messages": 8, "bytes": 150, "max_bytes": 2 << 30, "oldest_age_seconds": 2.0,
        "spooling": {"t": [1, 4], "u": [0]}, "problem": "Worker 1: The disk is full.",
    }  # fmt: skip
    first["spool"] = second["spool"] = None
    assert (await status(first, second))["spool"] is None


@manual_time
async def test_slots_and_leaving_workers_are_asked_together() -> None:
    """Each may be silent for two seconds, and a scrape waited for both."""
    asked = asyncio.Barrier(2)

    class Silent(Process):
        async def ask(self, path: str, accept: str) -> None:
            await asked.wait()

    leaving = SimpleNamespace(slot=1, ask=Silent(None).ask)
    both = SimpleNamespace(slots={0: slot(0, Silent(None))}, retiring=(1,), retirees=[leaving])
    answers = FleetAnswers(both, SupervisorMetrics(), lambda: "running")
    await answers.metrics("")
    await answers.status()


async def test_a_worker_that_is_not_ready_says_why_under_its_number() -> None:
    second = worker(1)
    second.update(ready=False, reasons=["There is no MQTT session."])
    document = await status(worker(0), second)
    assert document["ready"] is False
    assert document["reasons"] == ["Worker 1: There is no MQTT session."]


async def test_a_worker_that_says_nothing_is_there_all_the_same() -> None:
    document = await status(worker(0), None, problem="It ended with status 1.")
    assert document["ready"] is False
    assert document["reasons"] == ["Worker 1 does not answer. It ended with status 1."]
    assert document["workers"][1]["up"] is False
    assert document["ledger"]["received"] == status_documents.quiet()["ledger"]["received"]
    assert [one["id"] for one in document["problems"]] == ["worker-down"]
