"""What /status says, as samples: a quiet worker, and the states that are rare."""

import copy
from typing import Any

HOSTILE = "<img src=x onerror=\"document.title='taken'\"></script><script>document.title='taken'</script>&amp;\"'`"


def partitions(topic: str, number: int, brokers: int = 3) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic, "partition": at, "leader": at % brokers + 1, "waiting": 0, "waiting_bytes": 0,
            "spooled": 0, "last_ack_age_seconds": 0.4, "silent_seconds": 0, "health": "ok",
        }
        for at in range(number)
    ]  # fmt: skip


def quiet() -> dict[str, Any]:
    """A worker with traffic and nothing wrong."""
    used = [*partitions("devices.telemetry", 24), *partitions("devices.status", 12)]
    for one in used[30:]:
        one.update(health="idle", last_ack_age_seconds=412.0)
    return {
        "state": "RUNNING", "since": "2026-11-20T08:15:02Z", "instance": "plant-7",
        "instance_id": "b7c2e1f0a4d94f0a9a0c5d1b7e6f2a10", "worker": 0, "last_shutdown": "clean",
        "versions": {"gateway": "0.1.0", "python": "3.11.2", "paho": "2.2.0", "aiokafka": "0.14.0", "build": "pure"},
        "kafka": {
            "cluster_id": "bXF0dC1rYWZrYS1nYXRldw",
            "incarnation": 1,
            "brokers": [
                {
                    "id": number, "host": f"kafka-{number}.plant.example", "port": 9092, "leads": 12, "waiting": 0,
                    "last_ack_age_seconds": 0.3, "silent_seconds": 0, "health": "ok",
                }
                for number in (1, 2, 3)
            ],
        },
        "spool": {
            "messages": 0, "bytes": 0, "max_bytes": 1 << 30, "oldest_age_seconds": 0.0, "spooling": {},
            "problem": None,
        },
        "orphan_sessions": [],
        "routes": {
            "telemetry": {"received": 1_284_551, "delivered": 1_284_500, "filtered": 0, "dead_lettered": 0},
            "status": {"received": 20_416, "delivered": 20_416, "filtered": 12, "dead_lettered": 0},
        },
        "ready": True,
        "reasons": [],
        "unacked": 51,
        "oldest_unacked_age_seconds": 0.012,
        "sessions": [
            {
                "session": str(number), "client_id": f"plant-7-0-{number}", "connected": True, "subscribed": True,
                "unacked": 13, "window": 1000, "problem": None,
            }
            for number in range(4)
        ],
        "topics": [
            {"topic": "devices.telemetry", "partitions": 24, "used": 24, "leaderless": [], "problem": None},
            {"topic": "devices.status", "partitions": 12, "used": 12, "leaderless": [], "problem": None},
        ],
        "ledger": {
            "received": 1_304_967, "recovered": 0, "delivered": 1_304_904, "filtered": 12, "dead_lettered": 0,
            "copies": 0, "in_flight": 51, "returned": 0, "lost": 0, "imbalance": 0,
        },
        "partitions": used,
        "partitions_total": len(used),
        "problems": [],
        "latency": {"produce": {"p50": 0.0041, "p99": 0.012}, "end_to_end": {"p50": 0.0062, "p99": 0.021}},
        "rates": {
            "received_per_second": 4213.0,
            "delivered_per_second": 4210.5,
            "received_bytes_per_second": 903_112.0,
            "sent_bytes_per_second": 820_224.0,
        },
        "dead_letters": {"total": 0, "by_reason": {}, "last": []},
    }  # fmt: skip


def broken() -> dict[str, Any]:
    """One of three brokers is frozen, a partition has no leader, records go to the spool, and a route makes dead
    letters."""
    document = quiet()
    document["ready"] = False
    document["reasons"] = ["Kafka topic devices.telemetry has no leader for 1 of 24 partitions (5)."]
    for one in document["partitions"]:
        if one["leader"] == 2:
            one.update(
                health="silent", waiting=812, waiting_bytes=190_224, silent_seconds=14.2, last_ack_age_seconds=14.2
            )
    document["partitions"][5].update(health="leaderless", leader=None, waiting=77, waiting_bytes=18_000)
    document["partitions"][7].update(health="spooling", spooled=4120, waiting=3)
    document["partitions"][10].update(health="waiting", waiting=40, waiting_bytes=9_000, silent_seconds=0.8)
    document["partitions"][13].update(health="held", waiting=9)
    document["kafka"]["brokers"][1].update(
        health="silent", waiting=8_932, silent_seconds=14.2, last_ack_age_seconds=14.2
    )
    document["sessions"][2].update(connected=False, subscribed=False, problem="refused: not authorised")
    document["sessions"][3].update(unacked=1000)
    document["unacked"], document["oldest_unacked_age_seconds"] = 1026, 14.2
    document["spool"].update(messages=4120, bytes=988_112, oldest_age_seconds=13.0, spooling={"devices.telemetry": [7]})
    document["ledger"].update(in_flight=9_841, dead_lettered=214, imbalance=0)
    document["routes"]["telemetry"].update(dead_lettered=214)
    document["problems"] = [
        {
            "id": "broker-silent",
            "severity": "critical",
            "text": "Kafka broker 2 (kafka-2.plant.example:9092) has been silent for 14 s: 11 partitions that it leads"
            " stand still, 8,932 records wait.",
            "check": "Look at that broker's log and disk first; restart it, and not the gateway: `gateway doctor` tells"
            " a frozen broker from a dead one.",
        },
        {
            "id": "partition-leaderless",
            "severity": "critical",
            "text": "Partition 5 of devices.telemetry has no leader.",
            "check": "Are two of its three replicas down? `gateway topics describe devices.telemetry`.",
        },
        {
            "id": "dead-letters",
            "severity": "warning",
            "text": "214 messages of the route telemetry have become dead letters.",
            "check": "The last reasons are below; `gateway dlq list` has the messages.",
        },
    ]
    document["dead_letters"] = {
        "total": 214,
        "by_reason": {"interceptor": 210, "too_large": 4},
        "last": [
            {
                "at": "2026-11-21T10:14:59Z",
                "reason": "interceptor",
                "topic": "devices.telemetry",
                "route": "telemetry",
                "text": "json_schema: $.temperature is no number (MQTT topic devices/press-17/telemetry)",
            }
        ]
        * 10,
    }
    return document


def hostile() -> dict[str, Any]:
    """Every text that comes from outside tries to become markup."""
    document = broken()

    def poison(value: Any) -> Any:
        match value:
            case dict():
                return {poison_key(key): poison(one) for key, one in value.items()}
            case list():
                return [poison(one) for one in value]
            case str() if value not in {"critical", "warning"}:
                return f"{HOSTILE} {value}"
            case _:
                return value

    def poison_key(key: str) -> str:
        return HOSTILE if key in {"telemetry", "interceptor", "gateway"} else key

    poisoned: dict[str, Any] = poison(document)
    for one in poisoned["partitions"]:
        one["health"] = one["health"].removeprefix(f"{HOSTILE} ")
    poisoned["partitions"][0]["health"] = HOSTILE
    return poisoned


def crowd(workers: int = 64, number: int = 2000) -> dict[str, Any]:
    """What a supervisor says of many workers with many partitions, the worst of them first."""
    one = quiet()
    used = [part for topic in range(number // 100) for part in partitions(f"devices.line-{topic:02}", 100, 24)]
    for part in used[::97]:
        part.update(health="silent", silent_seconds=9.0, waiting=11, waiting_bytes=3000)
    members = []
    for worker in range(workers):
        member = copy.deepcopy(one)
        del member["partitions"], member["spool"]
        for session in member["sessions"]:
            session["client_id"] = f"plant-7-{worker}-{session['session']}"
        members.append({**member, "worker": worker, "pid": 1000 + worker, "up": True, "restarts": 0, "problem": None})
    members[7].update(up=False, problem="It ended with status 1 and is started again in 8 s.", restarts=3)
    for name in ("sessions", "ledger", "routes"):
        del members[7][name]
    return {
        "state": "running", "pid": 999, "ready": False,
        "reasons": ["Worker 7 does not answer. It ended with status 1 and is started again in 8 s."],
        "unacked": 51 * (workers - 1), "oldest_unacked_age_seconds": 0.4,
        "ledger": {term: count * (workers - 1) for term, count in one["ledger"].items()}, "routes": one["routes"],
        "kafka": {"cluster_id": one["kafka"]["cluster_id"], "brokers": one["kafka"]["brokers"]}, "partitions": used,
        "partitions_total": 2 * number,
        "problems": [
            {
                "id": "worker-down", "severity": "critical",
                "text": "Worker 7 does not answer. It ended with status 1 and is started again in 8 s.",
                "check": "Its log says why it ended.", "workers": [7],
            }
        ],
        "latency": one["latency"], "rates": {name: rate * (workers - 1) for name, rate in one["rates"].items()},
        "dead_letters": one["dead_letters"], "spool": one["spool"], "slots_retiring": [], "workers": members,
    }  # fmt: skip


def commands(**changes: Any) -> dict[str, Any]:
    """What a worker says of its ``[[commands]]``."""
    row = {
        "open": True, "partitions": ["commands/0", "commands/1"], "consumed": 1210,
        "finished": {"expired": 3, "succeeded": 1200}, "waiting": 5, "under_way": 2, "given_up": 0, "imbalance": 0,
        "states": {"queued": 4, "sent": 2, "waiting": 1}, "unmatched": {"already finished": 1},
        "oldest_seconds": 12.5, "busiest": {"pump-7": 5}, "settle": "5s", "errors": {},
        **changes,
    }  # fmt: skip
    return {"client_id": "plant-7-0-commands", "connected": True, "problem": None, "routes": {"switches": row}}
