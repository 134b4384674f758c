"""Merges the workers' health for /status."""

from collections.abc import Sequence
from typing import Any, Final

from config.numbers import many
from gateway.base.problem import Problem
from gateway.base.vitals import LATENCIES, latency
from gateway.supervisor.slot import Slot

MOST_PARTITIONS: Final = 2000
LAST: Final = 10
BUSIEST: Final = 5
SILENT_NS: Final = 30_000_000_000
RECENT_NS: Final = 600_000_000_000
# If workers differ, the worst state is shown.
_BROKERS: Final = ("idle", "ok", "unreachable", "silent")
_LATENCIES: Final = ("produce", "end_to_end")
_COMMAND_COUNTS: Final = ("consumed", "waiting", "under_way", "given_up", "imbalance")
_PARTITIONS: Final = ("idle", "ok", "waiting", "spooling", "held", "leaderless", "silent")

Row = dict[str, Any]


def worker_problem(slot: Slot, now_ns: int, unanswered_ns: int | None) -> Problem | None:
    """The problem of a worker's process itself. ``unanswered_ns``: since when it has not answered, or None."""
    check = "The log's worker_ended says how each one ended. After a kill by the kernel: the container's memory limit."
    subject = f"worker {slot.number}"
    silent_ns = 0 if unanswered_ns is None else now_ns - unanswered_ns
    if unanswered_ns is not None and slot.problem:
        text = f"Worker {slot.number} does not run: {slot.problem.rstrip('.')}. It is started again, with pauses."
        return Problem("worker-down", "critical", text, check, subject)
    if silent_ns > SILENT_NS:
        text = f"Worker {slot.number} runs, and has not answered for {silent_ns / 1e9:.0f} s."
        check = (
            "Check whether the process is stopped or without CPU. Its MQTT sessions time out, and EMQX queues for them."
        )
        return Problem("worker-down", "critical", text, check, subject)
    if slot.ended_ns and now_ns - slot.ended_ns < RECENT_NS:
        minutes = round((now_ns - slot.ended_ns) / 60e9)
        when = "less than a minute ago" if minutes < 1 else f"{many(minutes, 'minute')} ago"
        times = "" if slot.restarts == 1 else f"{slot.restarts} times, the last time "
        text = f"Worker {slot.number} has ended by itself {times}{when}."
        return Problem("worker-restarting", "warning", text, check, subject)
    return None


def merged(workers: list[Row], own: list[Problem], late: Sequence[Row] = ()) -> Row:
    """``kafka.brokers``, ``partitions``, ``problems``, ``latency``, ``rates``, ``spool``, ``dead_letters`` and, where a
    worker has them, ``commands`` of the workers that answer.

    Waiting records and rates are added up. Of ages the youngest is shown, of silences the longest. A problem of several
    workers is shown once, with their numbers in ``workers``. ``own`` are the supervisor's problems, ``late`` further
    workers, of which the problems alone are shown."""
    problems = [worker for worker in (*workers, *late) if "problems" in worker]
    workers = [worker for worker in workers if "problems" in worker]
    partitions = _rows([row for worker in workers for row in worker["partitions"]], ("topic", "partition"), _PARTITIONS)
    partitions.sort(key=lambda row: -row["silent_seconds"])
    return {
        "kafka": {
            "cluster_id": next((worker["kafka"]["cluster_id"] for worker in workers), None),
            "brokers": _rows([row for worker in workers for row in worker["kafka"]["brokers"]], ("id",), _BROKERS),
        },
        "partitions": partitions[:MOST_PARTITIONS],
        "partitions_total": max([len(partitions), *(worker["partitions_total"] for worker in workers)]),
        "problems": sorted(
            [*_problems(problems), *(problem.as_dict() for problem in own)],
            key=lambda problem: problem["severity"] != "critical",
        ),
        "latency": {kind: _latency([worker["latency"][kind] for worker in workers]) for kind in _LATENCIES},
        "rates": summed([worker["rates"] for worker in workers]),
        "spool": _spool(workers),
        "dead_letters": {
            "total": sum(worker["dead_letters"]["total"] for worker in workers),
            "by_reason": summed([worker["dead_letters"]["by_reason"] for worker in workers]),
            "last": sorted(
                (last for worker in workers for last in worker["dead_letters"]["last"]),
                key=lambda last: str(last["at"]),
                reverse=True,
            )[:LAST],
        },
        **_commands(workers),
    }


def _rows(rows: list[Row], key: tuple[str, ...], order: tuple[str, ...]) -> list[Row]:
    """Merges rows of several workers with equal keys. ``order``: the words for health, the worst last."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        place = tuple(row[name] for name in key)
        one = found.get(place)
        if one is None:
            found[place] = dict(row)
            continue
        for name, value in row.items():
            if name in {"waiting", "waiting_bytes", "spooled"}:
                one[name] += value
            elif name in {"silent_seconds", "mute_seconds", "leads", "connected"}:
                one[name] = max(one[name], value)
            elif name == "last_ack_age_seconds":
                ages = [age for age in (one[name], value) if age is not None]
                one[name] = min(ages, default=None)
            elif name == "health":
                one[name] = max(one[name], value, key=order.index)
    return list(found.values())


def _problems(workers: list[Row]) -> list[Row]:
    """Each problem once; of several workers' problems the worst with the longest text."""
    found: dict[tuple[str, str], Row] = {}
    for worker in workers:
        for problem in worker["problems"]:
            key = (problem["id"], problem["subject"])
            one = found.get(key)
            if one is None:
                found[key] = {**problem, "workers": [worker["worker"]]}
                continue
            one["workers"].append(worker["worker"])
            if (problem["severity"] == "critical", len(problem["text"])) > (
                one["severity"] == "critical",
                len(one["text"]),
            ):
                one.update(problem)
    # A worker with no batch for that broker reports it as missing. One report per broker is enough.
    for key in [key for key in found if key[0] == "broker-unreachable" and ("broker-silent", key[1]) in found]:
        del found[key]
    every = len(workers)
    for problem in found.values():
        if len(problem["workers"]) < every:
            numbers = ", ".join(str(number) for number in problem["workers"])
            problem["text"] = f"Worker {numbers}: {problem['text']}"
    return list(found.values())


def _spool(workers: list[Row]) -> Row | None:
    """The sum of the workers' spools; None without a spool."""
    spools = [(worker["worker"], worker["spool"]) for worker in workers if worker["spool"]]
    if not spools:
        return None
    spooling: dict[str, set[int]] = {}
    for _, spool in spools:
        for topic, partitions in spool["spooling"].items():
            spooling.setdefault(topic, set()).update(partitions)
    problem = next((f"Worker {number}: {spool['problem']}" for number, spool in spools if spool["problem"]), None)
    return {
        **{name: sum(spool[name] for _, spool in spools) for name in ("messages", "bytes", "max_bytes")},
        "oldest_age_seconds": max(spool["oldest_age_seconds"] for _, spool in spools),
        "spooling": {topic: sorted(partitions) for topic, partitions in spooling.items()},
        "problem": problem,
    }


def _commands(workers: list[Row]) -> Row:
    """``commands`` of all workers; nothing where no worker has them."""
    found = [worker["commands"] for worker in workers if "commands" in worker]
    if not found:
        return {}
    names = dict.fromkeys(name for one in found for name in one["routes"])
    return {
        "commands": {
            "connected": sum(one["connected"] for one in found),
            "connections": len(found),
            "problem": next((one["problem"] for one in found if one["problem"] and not one["connected"]), None),
            "routes": {
                name: _one_commands([one["routes"][name] for one in found if name in one["routes"]]) for name in names
            },
        }
    }


def _one_commands(rows: list[Row]) -> Row:
    """One ``[[commands]]`` of several workers: counts are added, of ages the oldest is shown."""
    busiest = sorted(summed([row["busiest"] for row in rows]).items(), key=lambda one: -one[1])[:BUSIEST]
    ages = [row["oldest_seconds"] for row in rows if row["oldest_seconds"] is not None]
    return {
        "open": any(row["open"] for row in rows),
        "partitions": sorted(partition for row in rows for partition in row["partitions"]),
        **summed([{name: row[name] for name in _COMMAND_COUNTS} for row in rows]),
        **{name: summed([row[name] for row in rows]) for name in ("finished", "states", "unmatched")},
        "oldest_seconds": max(ages, default=None),
        "busiest": dict(busiest),
        "settle": rows[0]["settle"],
        "errors": {part: error for row in rows for part, error in row["errors"].items()},
    }


def _latency(workers: list[Row]) -> Row:
    """``latency`` of the workers' buckets added up."""
    counts: list[int] = []
    for one in workers:
        buckets = one["buckets"]
        if buckets:
            counts = [a + b for a, b in zip(counts, buckets, strict=True)] if counts else list(buckets)
    return latency(counts, LATENCIES)


def summed(rows: list[dict[str, float]]) -> dict[str, float]:
    """The sums of each name's values; those of whole numbers are whole."""
    total: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            total[name] = total.get(name, 0) + value
    return {name: round(value, 3) for name, value in total.items()}
