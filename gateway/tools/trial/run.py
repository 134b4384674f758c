"""One trial from beginning to end: topic, publisher, gateway, reading back, account; and everything away again."""

from __future__ import annotations

__all__ = ["Trial"]

import asyncio
import contextlib
import shutil
import tempfile
import time
from array import array
from bisect import bisect_left
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.errors import RefusedError, TopicMissingError, UnreachableError
from bridge.kafka.connection import cluster_id
from bridge.kafka.reader import TopicReader
from bridge.kafka.topics import Topics
from config.values.addresses import parse_mqtt_address
from gateway.components.outward import Outward, kafka_login
from gateway.devices.device import DeviceConnection, DeviceRefusedError, Way
from gateway.mqtt.login import Login
from gateway.tools.trial.account import Tally, TrialResult, percentiles
from gateway.tools.trial.plan import DEVICES, read_mark
from gateway.tools.trial.process import Subject, SubjectError
from gateway.tools.trial.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.dead_letters.reading import LoggedRecord
    from bridge.kafka.login import KafkaLogin
    from config.settings import Settings
    from gateway.tools.trial.cleanup import Cleanup
    from gateway.tools.trial.plan import TrialPlan

_STALL_S = 10.0  # without anything read back, while something is under way
_LOST_S = 1.0  # with QoS 0 what is not back by then is taken for lost, so that the rest may go on
_DELETE_S = 30.0
_TAKE_OVER_S = 5.0
_EXAMPLES = 5


class _Nobody:
    """Whom a connection that only ends a session tells what happens."""

    def on_acknowledged(self, packet_id: int, reason: int) -> None: ...

    def on_lost(self, why: str) -> None: ...


class Trial:
    """``base`` is the user's settings, of which brokers, credentials and limits are used. ``run`` may be cancelled at
    any moment: what is to be taken away is in ``cleanup``, whose owner runs it."""

    def __init__(self, plan: TrialPlan, base: Settings, cleanup: Cleanup, progress: Callable[[str], None]) -> None:
        self._plan = plan
        self._base = base
        self._cleanup = cleanup
        self._progress = progress
        self._tally = Tally(plan.messages, DEVICES)
        self._offsets: dict[int, tuple[array[int], array[int]]] = {}  # partition → offsets, message numbers
        self._batches: list[list[int]] = []
        self._run = plan.run.encode()
        self._read_last_s = 0.0
        self._notes: list[str] = []
        self._ended = False  # the gateway's sessions

    async def run(self) -> TrialResult:
        """Raises a GatewayError of whatever does not work."""
        plan, base = self._plan, self._base
        async with contextlib.AsyncExitStack() as stack:
            folder = await self._folder()
            settings = plan.settings(base, folder / "data")
            login = await stack.enter_async_context(kafka_login(settings.kafka))
            self._progress("connecting to Kafka")
            await cluster_id(settings.kafka, f"{plan.instance}-admin", login)  # raises the sentence that says why not
            await self._topic(settings, login)
            reader = await stack.enter_async_context(
                TopicReader(settings.kafka, f"{plan.instance}-witness", (plan.kafka_topic,), login)
            )
            starts = await reader.ends()
            outward = Outward(settings)
            await outward.start()
            stack.push_async_callback(outward.stop, 0)
            address = parse_mqtt_address(settings.mqtt.addresses[0])
            way = Way(address, settings.mqtt, Login(settings.mqtt, outward.mqtt))
            publisher = await self._publisher(way)
            subject = await self._subject(settings, way, folder)
            witness = asyncio.create_task(self._witness(reader, starts, publisher))
            try:
                seconds, stalled = await self._flow(publisher, subject, witness)
                await subject.measure()
                await self._stop(subject, way)
            finally:
                witness.cancel()
                await asyncio.gather(witness, return_exceptions=True)
        return self._result(publisher, subject, seconds, stalled)

    # --- what is made, each with its way back

    async def _folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"gateway-trial-{self._plan.run}-"))

        async def undo() -> None:
            shutil.rmtree(folder)

        self._cleanup.add(f"folder {folder}", undo, command=f"rm -r {folder}")
        return folder

    async def _topic(self, settings: Settings, login: KafkaLogin) -> None:
        plan = self._plan
        if plan.topic is not None:
            self._notes.append(
                f"The trial's records stay in topic {plan.topic}, which was there before, until they expire."
            )
            return
        self._progress(f"creating topic {plan.kafka_topic}")
        topics = Topics(settings.kafka, f"{plan.instance}-admin", login)
        servers = ",".join(settings.kafka.bootstrap_servers)
        self._cleanup.add(
            f"Kafka topic {plan.kafka_topic}",
            partial(self._remove, settings),
            command=f"kafka-topics.sh --bootstrap-server {servers} --delete --topic {plan.kafka_topic}",
            patience_s=_DELETE_S + 5.0,
        )
        try:
            await topics.create([plan.kafka_topic])
        except RefusedError as error:
            self._cleanup.forget_last()
            raise RefusedError(f"{error} Or name a topic that is there already: --topic.") from error
        await self._listed(settings, login)

    async def _listed(self, settings: Settings, login: KafkaLogin) -> None:
        """Returns when Kafka knows the topic everywhere it is asked about."""
        deadline = time.monotonic() + _DELETE_S
        while True:
            try:
                async with TopicReader(settings.kafka, self._plan.instance, (self._plan.kafka_topic,), login) as reader:
                    await reader.ends()
                    return
            except (TopicMissingError, UnreachableError):
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def _remove(self, settings: Settings) -> None:
        """By a login of its own: that of the trial has ended by now."""
        async with kafka_login(settings.kafka) as login:
            await Topics(settings.kafka, f"{self._plan.instance}-admin", login).remove(
                [self._plan.kafka_topic], _DELETE_S
            )

    async def _publisher(self, way: Way) -> Publisher:
        self._progress(f"connecting to {way.address}")
        publisher = Publisher(self._plan, way, self._tally)
        self._cleanup.add(
            "MQTT sessions of the publisher", publisher.close, command="none: the broker ends them with the connections"
        )
        try:
            await publisher.connect()
        except DeviceRefusedError as error:
            user = way.settings.username if self._plan.publisher is None else self._plan.publisher[0]
            text = str(error).partition(": ")[2] or str(error)
            raise DeviceRefusedError(
                f"{way.address}: {text}. The publisher connected as {user!r}: check mqtt.username and mqtt.password in "
                "--config (or GATEWAY_MQTT__USERNAME and …_PASSWORD), and --publisher-username."
            ) from error
        return publisher

    async def _subject(self, settings: Settings, way: Way, folder: Path) -> Subject:
        self._progress("starting the gateway")
        subject = Subject(settings, folder / "gateway.log", self._batches.extend)
        expiry_s = settings.mqtt.session_expiry.total_seconds()
        self._cleanup.add(
            f"MQTT sessions {settings.instance}-0-0 and up",
            partial(self._stop, subject, way),
            command=f"none: without a connection the broker forgets them after {expiry_s:g} s",
            patience_s=settings.shutdown_timeout.total_seconds() + 10.0,
        )
        try:
            await subject.start()
        except SubjectError as error:
            if error.reason != "subscribe":
                raise
            right = self._plan.missing_right(way.settings.username, "subscribe")
            raise SubjectError(f"{error} {right}", error.exit_status) from error
        return subject

    async def _stop(self, subject: Subject, way: Way) -> None:
        self._progress("ending the gateway's sessions")
        if self._ended or await subject.stop():
            self._ended = True
            return
        # It died, or could not: whoever connects under a session's id with a clean start ends it (MQTT 5.0, 3.1.2.4).
        for number in range(way.settings.sessions):
            connection = DeviceConnection(f"{self._plan.instance}-0-{number}", _Nobody(), way=way)
            with contextlib.suppress(DeviceRefusedError):  # then it never had one
                await connection.connect_by(timeout_s=_TAKE_OVER_S)
            await connection.disconnect()
        self._ended = True

    # --- what flows

    async def _flow(self, publisher: Publisher, subject: Subject, witness: asyncio.Task[None]) -> tuple[float, str]:
        """Publish everything and wait until it is back. Returns how long it took, and why it ended early."""
        loop = asyncio.get_running_loop()
        started_s = self._read_last_s = loop.time()
        payload, plan, tally = self._plan.payloads().payload, self._plan, self._tally
        number = given_up = 0
        while True:
            now_s = loop.time()
            self._check(publisher, subject, witness)
            allowed = plan.messages if plan.rate is None else int((now_s - started_s) * plan.rate) + 1
            allowed = min(plan.messages, allowed, tally.read + given_up + plan.ahead)
            while number < allowed and publisher.room_for(number):
                publisher.publish(number, payload(number))
                number += 1
            if tally.read == plan.messages and publisher.acknowledged >= (plan.messages if plan.qos else 0):
                return self._flowed_s(started_s), ""
            quiet_s = now_s - self._read_last_s
            if now_s - started_s > plan.timeout_s:
                return self._flowed_s(
                    started_s
                ), f"the time limit of {plan.timeout_s:g} s was reached.{subject.last_log()}"
            if plan.qos == 0 and quiet_s > _LOST_S and number < plan.messages:
                given_up = number - tally.read
            elif quiet_s > _STALL_S and number > tally.read:
                done = number == plan.messages
                why = "" if done else f"nothing came back for {_STALL_S:g} s."
                return self._flowed_s(started_s), f"{why}{subject.last_log()}".strip()
            publisher.moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02 if plan.rate else 0.1):
                    await publisher.moved.wait()

    def _flowed_s(self, started_s: float) -> float:
        """Until the last record came, not until we were sure of it."""
        return max(self._read_last_s - started_s, 1e-3)

    def _check(self, publisher: Publisher, subject: Subject, witness: asyncio.Task[None]) -> None:
        if publisher.error is not None:
            raise publisher.error
        if subject.error is not None:
            raise subject.error
        if witness.done():
            witness.result()

    async def _witness(self, reader: TopicReader, starts: dict[tuple[str, int], int], publisher: Publisher) -> None:
        loop = asyncio.get_running_loop()
        said_s = 0.0
        async for records in reader.follow(starts):
            if records:
                self._take(records)
                publisher.moved.set()
            if loop.time() - said_s > 0.5:
                said_s = loop.time()
                self._progress(f"{publisher.sent:,} published, {self._tally.read:,} read back")

    def _take(self, records: list[LoggedRecord]) -> None:
        now_ns, tally = time.monotonic_ns(), self._tally
        for record in records:
            number = read_mark(self._run, record.value)
            if number is None:
                continue
            self._read_last_s = asyncio.get_running_loop().time()
            size = len(record.key or b"") + len(record.value or b"")
            size += sum(len(name) + len(value or b"") for name, value in record.headers)
            if not 0 <= number < self._plan.messages:
                continue
            if not tally.read_ns[number]:
                offsets, numbers = self._offsets.setdefault(record.place.partition, (array("q"), array("q")))
                offsets.append(record.place.offset)
                numbers.append(number)
            tally.found(number, size, now_ns)

    # --- what came of it

    def _result(self, publisher: Publisher, subject: Subject, seconds: float, stalled: str) -> TrialResult:
        plan, tally = self._plan, self._tally
        self._attribute()
        missing = tally.missing()
        return TrialResult(
            run=plan.run,
            qos=plan.qos,
            size=plan.size,
            kafka_topic=plan.kafka_topic,
            wanted=plan.messages,
            sent=publisher.sent,
            acknowledged=sum(1 for at_ns in tally.acknowledged_ns if at_ns),
            delivered=tally.read,
            missing=len(missing),
            duplicates=tally.duplicates,
            out_of_order=tally.reordered,
            seconds=seconds,
            messages_per_second=tally.read / seconds,
            mqtt_acknowledged=percentiles(tally.since_sent(tally.acknowledged_ns)) if plan.qos else None,
            kafka_acknowledged=percentiles(tally.since_sent(tally.stored_ns)),
            read_back=percentiles(tally.since_sent(tally.read_ns)),
            published_bytes=publisher.sent_bytes,
            record_bytes=tally.bytes,
            batch_bytes=subject.batch_bytes,
            cpu_seconds=subject.cpu_s,
            reconnects=publisher.reconnects,
            stalled=stalled,
            missing_examples=tuple(missing[:_EXAMPLES]),
            left_behind=self._cleanup.left,
            notes=self._notes,
        )

    def _attribute(self) -> None:
        """When Kafka acknowledged each message: the batches know offsets, the records that were read know numbers."""
        for partition, first, count, now_ns in self._batches:
            offsets, numbers = self._offsets.get(partition, (array("q"), array("q")))
            if first < 0 or not offsets:
                continue
            at = bisect_left(offsets, first)
            while at < len(offsets) and offsets[at] < first + count:
                self._tally.stored_ns[numbers[at]] = now_ns
                at += 1
