"""Tests of commands on real parts: devices that obey them, a site of topics and settings, and the verdict.

The verdict rests on the devices' own records and on the status topic, read by another client than the gateway's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import paho.mqtt.client as mqtt
from confluent_kafka import KafkaException, Message, Producer

from tests.brokers.client import hang_up
from tests.brokers.reading import read_all
from tests.brokers.topics import create_topic
from tests.chaos.case import QUICK
from tests.waiting import DEADLINE_S, wait_until

if TYPE_CHECKING:
    from tests.chaos.harness import Gateway

SECRET = "s" * 32
OUTCOMES = frozenset(
    ("sent", "delivered", "succeeded", "failed", "rejected", "timed_out", "expired", "undeliverable", "refused")
)


class Got(NamedTuple):
    """A command that a device has: its id, what it says, and when."""

    id: str
    payload: bytes
    token: str
    topic: str
    user: Mapping[str, str]
    at_s: float
    expiry_s: int | None


def token_content(token: str) -> tuple[str, str]:
    """Place and id in a token, read as anybody can."""
    text = token.partition(".")[0]
    place, _, command_id = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition("\0")
    return place, command_id


Answers = Callable[["Device", Got], Iterable[int]]


def obeys(_device: Device, _got: Got) -> Iterable[int]:
    """It does what it is told."""
    return (200,)


def is_silent(_device: Device, _got: Got) -> Iterable[int]:
    """It never answers."""
    return ()


class Device:
    """A paho client that subscribes to its commands and answers with the codes that ``answers`` gives for each.

    ``persistent``: with a session that outlives its connection.
    """

    def __init__(
        self, port: int, name: str, *, prefix: str = "devices", version: int = 5, answers: Answers = obeys,
        qos: int = 1, persistent: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.prefix, self.version, self.answers = name, prefix, version, answers
        self.got: list[Got] = []
        self._filter, self._qos = f"{prefix}/{name}/req/#", qos
        self._subscribed = threading.Event()
        self._port, self._persistent = port, persistent
        self.paho = self._make()

    def _make(self) -> mqtt.Client:
        options: dict[str, Any] = {} if self.version == 5 else {"clean_session": not self._persistent}
        version = mqtt.MQTTProtocolVersion(self.version)
        made = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"{self.prefix}-{self.name}", protocol=version, **options)
        made.reconnect_delay_set(1, 1)
        made.on_connect = self._on_connect
        made.on_subscribe = lambda *_: self._subscribed.set()
        made.on_message = self._on_message
        return made

    def __enter__(self) -> Self:
        self.come()
        return self

    def __exit__(self, *_error: object) -> None:
        self.leave()

    def come(self) -> None:
        """Connect and subscribe."""
        self._subscribed.clear()
        self.paho = self._make()
        extra: dict[str, Any] = {}
        if self.version == 5:
            properties = mqtt.Properties(mqtt.PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3600 if self._persistent else 0
            extra = {"clean_start": not self._persistent, "properties": properties}
        self.paho.connect("127.0.0.1", self._port, **extra)
        self.paho.loop_start()
        assert self._subscribed.wait(DEADLINE_S), f"{self.name} is not subscribed"

    def leave(self) -> None:
        hang_up(self.paho)

    def answer(self, got: Got, code: int, payload: bytes = b"done", *, as_device: str | None = None) -> None:
        """Answer a command, perhaps late, again, or with another device's name."""
        topic = f"{self.prefix}/{as_device or self.name}/res"
        if self.version == 5:
            properties = mqtt.Properties(mqtt.PacketTypes.PUBLISH)
            properties.CorrelationData = got.token.encode()
            properties.UserProperty = [("status", str(code))]
            self.paho.publish(topic, payload, 1, properties=properties)
        else:
            self.paho.publish(f"{topic}/{got.token}/{code}", payload, 1)

    @property
    def ids(self) -> list[str]:
        """Of all it got, with copies."""
        return [got.id for got in self.got]

    def wait(self, count: int, deadline_s: float = DEADLINE_S) -> list[Got]:
        """Wait until it has so many, copies counted."""
        wait_until(lambda: len(self.got) >= count, lambda: f"{self.name} has {count}; {self.ids}", deadline_s)
        return self.got

    def _on_connect(self, client: mqtt.Client, *_: Any) -> None:
        client.subscribe(self._filter, self._qos)

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        user: dict[str, str] = {}
        expiry_s = None
        if self.version == 5:
            properties: Any = message.properties
            token = getattr(properties, "CorrelationData", b"").decode()
            user = dict(getattr(properties, "UserProperty", ()))
            expiry_s = getattr(properties, "MessageExpiryInterval", None)
        else:
            token = message.topic.rpartition("/")[2]
        got = Got(token_content(token)[1], message.payload, token, message.topic, user, time.monotonic(), expiry_s)
        self.got.append(got)
        for code in self.answers(self, got):
            self.answer(got, code)


class Fleet(Device):
    """Many devices at one connection: it gets the commands of all, and answers each with its device's name."""

    def __init__(self, port: int, *, answers: Answers = obeys) -> None:
        super().__init__(port, "+", answers=answers)

    def answer(self, got: Got, code: int, payload: bytes = b"done", *, as_device: str | None = None) -> None:
        super().answer(got, code, payload, as_device=as_device or got.topic.split("/")[1])

    def by_device(self) -> dict[str, list[str]]:
        """The ids that each device got."""
        found: dict[str, list[str]] = defaultdict(list)
        for got in self.got:
            found[got.topic.split("/")[1]].append(got.id)
        return found


@dataclass
class Site:
    """Topics of commands, statuses and answers in a Kafka, and the tables of a gateway that serves them.

    Statuses carry the time of their append: the broker's word, whatever the gateway's clock says.
    """

    bootstrap: str
    name: str
    partitions: int = 3
    sent: list[str] = field(default_factory=list)  # the ids that were given

    def __post_init__(self) -> None:
        self.commands, self.statuses, self.answers = (f"{self.name}-{what}" for what in ("cmd", "status", "answers"))
        self.acked, self.dead = f"{self.name}-acked", f"{self.name}-dead"
        # acks=all and one attempt in order: the test knows what is in the topic.
        self._producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "enable.idempotence": True, "log_level": 0}
        )

    def create(self) -> Self:
        async def make() -> None:
            await create_topic(self.bootstrap, self.commands, partitions=self.partitions)
            config = {"message.timestamp.type": "LogAppendTime"}
            await create_topic(self.bootstrap, self.statuses, partitions=self.partitions, config=config)
            for topic in (self.answers, self.acked, self.dead):
                await create_topic(self.bootstrap, topic, partitions=2)

        asyncio.run(make())
        return self

    def tables(
        self, *, prefix: str = "devices", more: Sequence[Mapping[str, Any]] = (), **entry: Any
    ) -> dict[str, Any]:
        """Settings beside the usual ones: routes, and a ``[[commands]]`` with these; ``more`` are further ones.

        The group has the site's name. By default it has the instance's, which all tests share: in one Kafka, a
        gateway of a test would fence the gateway of another test that still runs.
        """
        # By device, for a device's answers in MQTT 3.1.1 have topics of their own, and would be read in any order.
        way_back = {
            "key": "${topic[1]}",
            "device": "${topic[1]}",
            "metadata_headers": ["topic", "properties", "device"],
        }
        commands = {
            "name": "switches", "topics": [self.commands], "status_topic": self.statuses, "answers": "answers",
            "secret": SECRET, "mqtt_topic": f"{prefix}/${{device}}/req/${{subject}}/${{id}}",
            "response_topic": f"{prefix}/${{device}}/res", "settle": "0s", "answer_timeout": "20s",
            "group": f"{self.name}-commands", **entry,
        }  # fmt: skip
        return {
            "mqtt": {"sessions": 1, **QUICK},
            "routes": [
                {"name": "answers", "filters": ["+/+/res/#"], "topic": self.answers, **way_back},
                {"name": "acked", "filters": ["acked/+"], "topic": self.acked, **way_back},
            ],
            "dead_letter": {"topic": self.dead},
            "commands": [{key: value for key, value in commands.items() if value is not None}, *more],
        }

    def send(
        self, device: str, payload: bytes = b"on", *, id_: str | None = None, answer: bool = True, topic: str = "",
        key: bytes | None = None, **headers: str,
    ) -> None:  # fmt: skip
        """A command; its key is the device. Call ``flush`` to know that Kafka has it."""
        found = {"subject": "switch", "response-required": str(answer).lower(), **headers}
        if id_ is not None:
            found["correlation-id"] = id_
            self.sent.append(id_)
        while True:
            try:
                self._producer.produce(
                    topic or self.commands, payload, key=device.encode() if key is None else key,
                    headers=[(name.replace("_", "-"), value.encode()) for name, value in found.items()],
                )  # fmt: skip
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    def history(self, topic: str = "") -> dict[str, list[dict[str, Any]]]:
        """All statuses by place of the command, in order; none while Kafka cannot be read."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)

        def pick(message: Message) -> dict[str, Any]:
            more = {"key": (message.key() or b"").decode(), "appended_ms": message.timestamp()[1]}
            return json.loads(message.value() or b"{}") | more

        partitions: list[list[dict[str, Any]]] = []
        with contextlib.suppress(KafkaException):  # a topic that has just been made, a Kafka that was frozen
            partitions = read_all(self.bootstrap, topic or self.statuses, pick)
        for number, partition in enumerate(partitions):
            for status in partition:
                assert status["command"].rpartition(":")[0].endswith(f"/{number}"), "its partition is the command's"
                found[status["command"]].append(status)
        return found

    def of(self, command_id: str, topic: str = "") -> list[dict[str, Any]]:
        """The statuses of a command with an id of its own."""
        return [
            status for statuses in self.history(topic).values() for status in statuses if status["id"] == command_id
        ]

    def outcome(self, command_id: str, status: str, deadline_s: float = DEADLINE_S, topic: str = "") -> dict[str, Any]:
        """Wait for a terminal status of a command."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = self.of(command_id, topic)
            return any(one["terminal"] and one["status"] == status for one in found)

        wait_until(there, lambda: f"{command_id} is {status}; {[one['status'] for one in found]}", deadline_s, 0.2)
        return next(one for one in found if one["terminal"] and one["status"] == status)

    def finished(self, count: int, deadline_s: float = 90.0) -> dict[str, list[dict[str, Any]]]:
        """Wait until so many commands have a terminal status."""
        found: dict[str, list[dict[str, Any]]] = {}

        def there() -> bool:
            found.clear()
            found.update(self.history())
            return sum(any(one["terminal"] for one in statuses) for statuses in found.values()) >= count

        wait_until(there, lambda: f"{count} are finished; {summary(found)}", deadline_s, 0.5)
        return found


def share_of(gateway: Gateway) -> list[list[str]]:
    """The partitions of each of its workers."""
    status = gateway.status()
    workers = status.get("workers")
    found = [status] if workers is None else [worker.get("status") or worker for worker in workers]
    return [route["partitions"] for one in found for route in (one.get("commands") or {}).get("routes", {}).values()]


def summary(history: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, int]:
    """The commands by their last status."""
    found: dict[str, int] = defaultdict(int)
    for statuses in history.values():
        found[statuses[-1]["status"]] += 1
    return dict(found)


RANKS = ("accepted", "waiting", "sent", "delivered", "in_progress")


def check_histories(history: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """No command has two outcomes, but for an answer after ``timed_out``; and no status goes back."""
    for place, statuses in history.items():
        words = [f"{one['status']}{'!' * one['terminal']}{' late' * bool(one.get('late'))}" for one in statuses]
        outcomes = {one["status"] for one in statuses if one["terminal"] and not one.get("late")}
        late = [one["status"] for one in statuses if one.get("late")]
        assert len(outcomes) == 1, f"{place}: {words}"
        assert not late or outcomes == {"timed_out"}, f"{place}: {words}"
        assert len(set(late)) <= 1, f"{place}: {words}"
        ranks = [9 if one["terminal"] else RANKS.index(one["status"]) for one in statuses if not one.get("late")]
        assert ranks == sorted(ranks), f"{place}: {words}"


def check_devices(devices: Iterable[Device], sent: Mapping[str, Sequence[str]]) -> int:
    """Each device got all that was sent to it, first copies in order. Returns how many copies there were more."""
    return sum(check_device(device.name, device.ids, sent[device.name]) for device in devices)


def check_device(name: str, ids: Sequence[str], expected: Sequence[str]) -> int:
    """As ``check_devices``, of one."""
    first = list(dict.fromkeys(ids))
    lacks, strangers = set(expected) - set(first), set(first) - set(expected)
    assert not lacks | strangers, f"{name} lacks {sorted(lacks)[:5]}, and has {sorted(strangers)[:5]}"
    assert first == list(expected), f"{name}: not in order"
    return len(ids) - len(first)


@contextlib.contextmanager
def running(devices: Sequence[Device]) -> Any:
    """Devices that are there while the block runs."""
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(device)
        yield devices
