"""The canary: publishes as a device does, and reads its messages back from Kafka.

Its messages are ordinary: they take their route, count in the ledger, and stay in Kafka until retention deletes them.
It runs in worker 0 alone, on a connection of its own. It costs a message every ``canary.interval`` and one request a
second to Kafka.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from bridge.backoff import Backoff
from bridge.commands.ports import Outgoing
from bridge.errors import UnreachableError
from bridge.kafka.login import KafkaLogin
from bridge.message import MessageView
from bridge.routing.router import Router
from bridge.routing.topic_rule import RouteError
from bridge.waiting import end_tasks, report_failure
from config.errors import GatewayError, forget_frames
from config.settings import Settings
from config.values.grammar import format_duration, nanoseconds
from gateway.base.lookout_metrics import LEGS
from gateway.base.metrics import Metrics
from gateway.base.problem import Problem
from gateway.health.canary.account import CanaryAccount, Lost
from gateway.health.canary.problems import canary_problem
from gateway.health.canary.reader import EndReader
from gateway.mqtt.login import Login
from gateway.mqtt.publish_link import PublishLink

log = structlog.get_logger("canary")

_NOBODY: Final = 0x10
_MARK: Final = re.compile(rb"canary-([0-9a-f]{16})-(\d{1,18})")
_LOOK_S: Final = 0.5  # between two checks for late messages


def canary_topic(settings: Settings) -> str:
    return settings.canary.topic.replace("${instance}", settings.instance)


def canary_client_id(settings: Settings) -> str:
    """The canary's client id at the MQTT broker, and its name in Kafka's logs."""
    return f"{settings.instance}-canary"


class Canary:
    """A component of the service, started with the sessions. Belongs to the event loop's thread. Its failures are
    problems of the gateway and end nothing.

    ``router`` gives the present routes, which a reload may change. ``go`` is set when the gateway receives messages.
    """

    name: Final = "canary"

    def __init__(
        self,
        settings: Settings,
        *,
        router: Callable[[], Router],  # the present one
        metrics: Metrics,
        mqtt_login: Login,
        kafka_login: KafkaLogin,
        go: asyncio.Event,  # set when the gateway receives messages
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._router = router
        self._kafka_login = kafka_login
        self._go = go
        self._run_id = secrets.token_hex(8)
        self.mqtt_topic = canary_topic(settings)
        self.account = CanaryAccount(nanoseconds(settings.canary.timeout))
        self.kafka_topic = self._resolve()
        self._reader = self._make_reader()
        self._unreadable: str | None = "Kafka has not been read yet"
        self._readable = asyncio.Event()
        self._link = PublishLink(settings.mqtt, canary_client_id(settings), mqtt_login)
        self._link_changed = asyncio.Event()
        self._link.watch(self._link_changed.set)
        self._tasks: list[asyncio.Task[None]] = []
        self._alarmed = False  # a loss is logged, and no recovery yet
        self._watch_metrics()

    def _make_reader(self) -> EndReader:
        settings = self._settings
        return EndReader(settings.kafka, canary_client_id(settings), self._kafka_login, self.kafka_topic)

    def _resolve(self) -> str:
        """The present Kafka topic of its messages; empty without a route, or when the route's topic is unknown."""
        route = self._router().match(self.mqtt_topic)
        if route is None:
            return ""
        if route.kafka_topic is not None:
            return route.kafka_topic
        view = MessageView(self.mqtt_topic, 0b10, payload=self._payload(0), received_ms=time.time_ns() // 1_000_000)
        try:
            return route.for_message(route.for_topic(self.mqtt_topic), view).kafka_topic
        except RouteError:
            return ""

    def _follow_route(self) -> None:
        """Read another topic, if a reload has changed the route."""
        topic = self._resolve()
        if topic != self.kafka_topic:
            log.info("canary_moved", topic=topic, before=self.kafka_topic)
            self.kafka_topic = topic
            self._readable.clear()
            self.account.passed_over()

    def _watch_metrics(self) -> None:
        """Have the metrics read the account."""
        metrics, account = self._metrics, self.account
        metrics.canary_enabled.child().value = 1
        metrics.canary_success.watch(lambda: int(account.success is True))
        metrics.canary_sent.watch(lambda: account.sent)
        metrics.canary_received.watch(lambda: account.received)
        metrics.canary_late.watch(lambda: account.late)
        metrics.canary_duplicates.watch(lambda: account.duplicates)
        metrics.canary_lost.watch_rows(lambda: {(leg,): account.lost[leg] for leg in LEGS})

    async def start(self) -> None:
        await self._link.start()
        self._tasks = [
            asyncio.create_task(self._read(), name="canary reader"),
            asyncio.create_task(self._publish(), name="canary publisher"),
            asyncio.create_task(self._judge(), name="canary judge"),
        ]
        for task in self._tasks:
            task.add_done_callback(report_failure(_broken))

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - two seconds at most
        await end_tasks(*self._tasks)
        await self._link.stop(time.monotonic_ns())
        await self._reader.stop()
        self._metrics.canary_success.watch(lambda: 0)  # after a reload ends it, its last value would stay

    # --- publishing --------------------------------------------------------------------------------------------------

    def _payload(self, number: int) -> bytes:
        """A message; ``_MARK`` finds its id again in Kafka."""
        document = {
            "canary": self._settings.instance,
            "id": f"canary-{self._run_id}-{number}",
            "seq": number,
            "ts": time.time_ns() // 1_000_000,
        }
        return json.dumps(document).encode()

    async def _publish(self) -> None:
        """Send a message in each interval, once the topic was read or could not be read."""
        await self._go.wait()
        interval_s = self._settings.canary.interval.total_seconds()
        while True:
            self._follow_route()
            await self._readable.wait()
            began_s = time.monotonic()
            await self._send()
            await asyncio.sleep(max(0.0, began_s + interval_s - time.monotonic()))

    async def _send(self) -> None:
        """Publish a message and note how far it came. Waits for its acknowledgement, ``canary.timeout`` at most."""
        account, link = self.account, self._link
        number = account.send(time.monotonic_ns())
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._settings.canary.timeout.total_seconds()):
                while not link.room:
                    self._link_changed.clear()
                    await self._link_changed.wait()
                account.advance(number, "acknowledge")
                link.publish(
                    Outgoing(self.mqtt_topic, self._payload(number), 1),
                    lambda code: None if answer.done() else answer.set_result(code),
                )
                code = await answer
        except TimeoutError:
            if link.outstanding:
                link.give_up("it acknowledged no message within canary.timeout")
            return  # _judge reports how far the message came
        except ValueError as error:  # above a limit of the broker
            self._tell(account.failed(number, str(error)))
            return
        if code is None or code < 0:
            self._tell(account.failed(number, link.problem or "the broker ended the connection"))
        elif code >= 0x80:
            self._tell(account.failed(number, f"it answers {code:#04x} (MQTT 5.0 section 3.4.2.1)"))
        elif code == _NOBODY:
            self._tell(account.failed(number, f"it says that the topic has no subscriber ({code:#04x})"))
        else:
            account.advance(number, "kafka")

    # --- reading back ------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read the canary's topic for good; after a failure again, with a pause."""
        backoff = Backoff(500_000_000, 10_000_000_000)
        while True:
            if self._reader.topic != self.kafka_topic:
                self._reader = self._make_reader()
            try:
                await self._read_topic(backoff)
                continue
            except GatewayError as error:
                self._unreadable = str(error)
                log.warning("canary_not_read", topic=self.kafka_topic, error=str(error), repeat_key="canary_not_read")
                forget_frames(error)
            finally:
                await self._reader.stop()
            # The canary publishes also without a readable topic: its first message may create the topic.
            self._readable.set()
            await asyncio.sleep(backoff.next_ns(time.monotonic_ns()) / 1e9)

    async def _read_topic(self, backoff: Backoff) -> None:
        """Read until a reload changes the topic. Raises GatewayError."""
        reader = self._reader
        if not reader.topic:
            raise UnreachableError(f"No route takes {self.mqtt_topic}, or its Kafka topic is unknown for a canary.")
        if await reader.start():
            self.account.passed_over()
        self._unreadable = None
        self._readable.set()
        backoff.started(time.monotonic_ns())
        while reader.topic == self.kafka_topic:
            for record in await reader.read(_LOOK_S):
                self._look_at(record)

    def _look_at(self, record: Any) -> None:
        """Take a record of this canary. An interceptor may have moved the mark to the key or a header."""
        for place in (record.value, record.key, *(value for _, value in record.headers)):
            found = _MARK.search(place) if place is not None else None
            if found is not None and found[1].decode() == self._run_id:
                took_ns = self.account.arrived(int(found[2]), time.monotonic_ns())
                if took_ns is not None:
                    self._metrics.canary_seconds.child().observe(took_ns)
                    self._tell(None)
                return

    # --- judging -----------------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        """Report overdue messages, twice a second."""
        while True:
            await asyncio.sleep(_LOOK_S)
            unconnected = self._link.problem or ""
            for lost in self.account.expire(time.monotonic_ns(), unreadable=self._unreadable, unconnected=unconnected):
                self._tell(lost)

    def _tell(self, lost: Lost | None) -> None:
        """Log the first loss, and with None, after a message that arrived, the recovery."""
        if lost is not None and not self._alarmed:
            self._alarmed = True
            log.warning("canary_lost", leg=lost.leg, why=lost.why or None, number=lost.number)
        elif lost is None and self._alarmed:
            self._alarmed = False
            log.info("canary_well", lost=sum(self.account.lost.values()))

    def problems(self) -> tuple[Problem, ...]:
        """The present problem, if any. Does not block."""
        timeout = format_duration(self._settings.canary.timeout)
        problem = canary_problem(self.account, self.mqtt_topic, self.kafka_topic, timeout)
        return () if problem is None else (problem,)

    def facts(self) -> dict[str, object]:
        """For /status. Does not block."""
        account = self.account
        return {
            "mqtt_topic": self.mqtt_topic,
            "kafka_topic": self.kafka_topic or None,
            "success": account.success,
            "sent": account.sent,
            "received": account.received,
            "lost": dict(account.lost),
            "late": account.late,
            "duplicates": account.duplicates,
            "waiting": account.waiting,
            "last_seconds": None if account.last_ns is None else account.last_ns / 1e9,
        }


def _broken(error: BaseException) -> None:
    log.error("canary_broken", consequence="it measures nothing until the next start", exc_info=error)
