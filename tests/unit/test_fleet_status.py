"""Several workers' health as one document, and what the supervisor says of the workers themselves."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.base.vitals import LATENCIES
from gateway.supervisor.fleet_status import merged, worker_problem
from tests import status_documents

S = 1_000_000_000
BUCKETS = len(LATENCIES) + 1


def problem(kind: str, severity: str, subject: str = "", text: str = "A sentence.") -> dict[str, str]:
    return {"id": kind, "severity": severity, "subject": subject, "text": text, "check": "look"}


def buckets(**counts: int) -> list[int]:
    found = [0] * BUCKETS
    for place, count in counts.items():
        found[int(place[1:])] = count
    return found


def worker(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "worker": number,
        "kafka": {
            "cluster_id": "c",
            "brokers": [
                {"id": 1, "host": "k", "port": 9092, "leads": 6, "waiting": 2, "connected": True,
                 "last_ack_age_seconds": 0.1 + number, "silent_seconds": 0.0, "mute_seconds": 0.0, "health": "ok"}
            ],
        },
        "partitions": [
            {"topic": "orders", "partition": n, "leader": 1, "waiting": 1, "waiting_bytes": 10, "spooled": 0,
             "last_ack_age_seconds": None if number else 0.5, "silent_seconds": 0.0, "health": "ok"}
            for n in range(2)
        ],
        "partitions_total": 2,
        "problems": [],
        "spool": None,
        "latency": {
            kind: {"p50": 0.001, "p99": 0.001, "buckets": buckets(b0=50)} for kind in ("produce", "end_to_end")
        },
        "rates": {"received_per_second": 100.5},
        "dead_letters": {"total": 2, "by_reason": {"too_large": 2}, "last": [{"at": f"2026-01-01T00:00:0{number}Z"}]},
        **changes,
    }  # fmt: skip


def test_what_adds_up_is_added_up() -> None:
    document = merged([worker(0), worker(1)], [])
    (broker,) = document["kafka"]["brokers"]
    assert (broker["waiting"], broker["leads"], broker["last_ack_age_seconds"]) == (4, 6, 0.1)
    assert [(row["partition"], row["waiting"], row["waiting_bytes"]) for row in document["partitions"]] == [
        (0, 2, 20),
        (1, 2, 20),
    ]
    assert document["partitions"][0]["last_ack_age_seconds"] == 0.5
    assert document["partitions_total"] == 2
    assert document["rates"] == {"received_per_second": 201.0}
    assert document["dead_letters"]["by_reason"] == {"too_large": 4}
    assert [last["at"][-2] for last in document["dead_letters"]["last"]] == ["1", "0"]


def test_what_is_worse_wins() -> None:
    bad = worker(1)
    bad["partitions"][1].update(silent_seconds=12.0, health="silent", leader=None)
    bad["kafka"]["brokers"][0].update(mute_seconds=6.0, health="unreachable")
    document = merged([worker(0), bad], [])
    assert document["kafka"]["brokers"][0]["health"] == "unreachable"
    worst, other = document["partitions"]
    assert (worst["partition"], worst["silent_seconds"], worst["health"]) == (1, 12.0, "silent")
    assert other["health"] == "ok"


def test_a_quantile_is_of_all_workers_observations_and_not_of_their_quantiles() -> None:
    slow = worker(1)
    slow["latency"]["produce"] = {"p50": 9.0, "p99": 9.0, "buckets": buckets(b13=1)}
    document = merged([worker(0), slow], [])
    assert document["latency"]["produce"]["p50"] < 0.001
    assert document["latency"]["produce"]["p99"] > 5
    assert sum(document["latency"]["produce"]["buckets"]) == 51


def test_no_traffic_has_no_quantile() -> None:
    quiet = worker(0)
    quiet["latency"]["produce"] = {"p50": None, "p99": None, "buckets": []}
    assert merged([quiet, quiet], [])["latency"]["produce"]["p50"] is None


def test_a_problem_of_all_workers_is_there_once_and_of_some_says_whose() -> None:
    all_have = problem("broker-silent", "critical", "broker 2", "Broker 2 is silent.")
    longer = {**all_have, "text": "Broker 2 is silent, and two partitions wait."}
    own = problem("window-saturated", "warning", "", "The window is full.")
    document = merged([worker(0, problems=[own, all_have]), worker(1, problems=[longer])], [])
    first, second = document["problems"]
    assert (first["text"], first["workers"]) == (longer["text"], [0, 1])
    assert (second["text"], second["workers"]) == ("Worker 0: The window is full.", [0])


def test_the_worst_severity_of_a_problem_counts() -> None:
    mild = problem("mqtt-disconnected", "warning", "session 0", "A much longer sentence about it.")
    grave = problem("mqtt-disconnected", "critical", "session 0", "Short.")
    (found,) = merged([worker(0, problems=[grave]), worker(1, problems=[mild])], [])["problems"]
    assert (found["severity"], found["text"]) == ("critical", "Short.")


def test_a_broker_that_one_worker_waits_for_is_not_named_by_the_other_as_well() -> None:
    """Nothing of its own waits there: to that one the broker is missing only."""
    silent = problem("broker-silent", "critical", "broker 2", "Broker 2 is silent, and records wait.")
    missing = [problem("broker-unreachable", "warning", f"broker {n}", f"Broker {n} is away.") for n in (2, 3)]
    found = merged([worker(0, problems=missing), worker(1, problems=[silent])], [])["problems"]
    assert [(one["id"], one["subject"]) for one in found] == [
        ("broker-silent", "broker 2"),
        ("broker-unreachable", "broker 3"),
    ]


def test_without_any_worker_there_is_a_document_all_the_same() -> None:
    document = merged([], [])
    assert document["partitions"] == document["problems"] == document["kafka"]["brokers"] == []
    assert document["dead_letters"] == {"total": 0, "by_reason": {}, "last": []}


def slot(**changes: Any) -> Any:
    return SimpleNamespace(**{"number": 3, "problem": None, "restarts": 0, "ended_ns": 0, **changes})


@pytest.mark.parametrize(("one", "unanswered_ns", "severity", "words"), [
    (slot(), None, None, ""),
    (slot(), 995 * S, None, ""),  # a start, or a hand-over
    (slot(), 960 * S, "critical", "Worker 3 runs, and has not answered for 40 s."),
    (slot(problem="Killed by SIGKILL."), 999 * S, "critical", "Worker 3 does not run: Killed by SIGKILL."),
    (slot(restarts=2, ended_ns=880 * S), None, "warning", "by itself 2 times, the last time 2 minutes ago"),
    (slot(restarts=1, ended_ns=990 * S), None, "warning", "Worker 3 has ended by itself less than a minute ago."),
    (slot(restarts=1, ended_ns=300 * S), None, None, ""),
])  # fmt: skip
def test_what_is_said_of_the_process(one: Any, unanswered_ns: int | None, severity: str | None, words: str) -> None:
    found = worker_problem(one, 1000 * S, unanswered_ns)
    assert (found.severity if found else None) == severity
    assert words in (found.text if found else "")


def test_commands_of_all_workers_are_added_up() -> None:
    first = status_documents.commands()
    second = status_documents.commands(
        partitions=["commands/2"], finished={"succeeded": 10}, busiest={"pump-7": 1, "pump-8": 9}, oldest_seconds=None,
        errors={"group": "No coordinator."}, open=False,
    ) | {"connected": False, "problem": "refused"}  # fmt: skip
    found = merged([worker(0, commands=first), worker(1, commands=second), worker(2)], [])["commands"]
    assert [found["connected"], found["connections"], found["problem"]] == [1, 2, "refused"]
    row = found["routes"]["switches"]
    assert row["partitions"] == ["commands/0", "commands/1", "commands/2"]
    assert row["finished"] == {"expired": 3, "succeeded": 1210}
    assert [row["consumed"], row["waiting"], row["oldest_seconds"], row["open"]] == [2420, 10, 12.5, True]
    assert row["busiest"] == {"pump-8": 9, "pump-7": 6}
    assert row["errors"] == {"group": "No coordinator."}
    assert row.keys() == first["routes"]["switches"].keys()
    assert "commands" not in merged([worker(0)], [])
