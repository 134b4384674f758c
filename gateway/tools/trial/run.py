"""One trial: create the topics, publish, run the gateway, read back, try commands, account, remove everything."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.errors import RefusedError, TopicMissingError, UnreachableError
from bridge.kafka.connection import cluster_id
from bridge.kafka.group import SESSION_S
from bridge.kafka.group_admin import delete_group, remove_members
from bridge.kafka.reader import TopicReader
from bridge.kafka.topics import Topics
from bridge.waiting import end_tasks, until_set
from config.values.addresses import parse_mqtt_address
from gateway.admin.errors import AdminMissingError, AdminRetriableError
from gateway.admin.everywhere import wait_everywhere
from gateway.admin.kafka import KafkaAdmin
from gateway.base.process.daemon_thread import begun
from gateway.components.outward import Outward, kafka_login
from gateway.devices.device import DeviceConnection, DeviceRefusedError, Way
from gateway.mqtt.login import Login
from gateway.tools.trial.account import Moments, TrialResult, percentiles
from gateway.tools.trial.plan import DEVICES, TrialPlan, read_mark
from gateway.tools.trial.process import Subject, SubjectError
from gateway.tools.trial.publisher import Publisher

if TYPE_CHECKING:
    from bridge.dead_letters.reading import LoggedRecord
    from bridge.kafka.login import KafkaLogin
    from config.settings import Settings
    from gateway.tools.trial.account import CommandResult
    from gateway.tools.trial.cleanup import Cleanup

_STALL_S = 10.0  # longest time without a record read back while messages are under way, beside the rate's period
_LOST_S = 1.0  # a QoS 0 message that is not back by then counts as lost, so that others can be sent
_DELETE_S = 30.0
_TAKE_OVER_S = 5.0
_EXAMPLES = 5


class _Nobody:
    """Ignores the events of a connection that only ends a session."""

    def on_acknowledged(self, packet_id: int, reason: int) -> None: ...

    def on_lost(self, why: str) -> None: ...


class Trial:
    """One trial. Brokers, credentials and limits come from ``base``, the user's settings. ``run`` may be cancelled at
    any moment; the owner of ``cleanup`` then runs its steps."""

    def __init__(self, plan: TrialPlan, base: Settings, cleanup: Cleanup, progress: Callable[[str], None]) -> None:
        self._plan = plan
        self._base = base
        self._cleanup = cleanup
        self._progress = progress
        self._moments = Moments(plan.messages, DEVICES)
        self._offsets: dict[int, tuple[array[int], array[int]]] = {}  # partition → offsets, message numbers
        self._batches: list[list[int]] = []  # partition, first offset, records, monotonic ns
        self._run = plan.run.encode()
        self._read_last_s = 0.0
        self._notes: list[str] = []
        self._ended = False  # the gateway's sessions

    async def run(self) -> TrialResult:
        """Run the trial. Raises GatewayError for the first failure."""
        plan, base = self._plan, self._base
        async with contextlib.AsyncExitStack() as stack:
            folder = await self._make_folder()
            settings = plan.settings(base, folder / "data")
            login = await stack.enter_async_context(kafka_login(settings.kafka))
            self._progress("connecting to Kafka")
            await cluster_id(
                settings.kafka, f"{plan.instance}-admin", login
            )  # raises with the reason if Kafka is unreachable
            await self._make_topics(settings, login)
            reader = await stack.enter_async_context(
                TopicReader(settings.kafka, f"{plan.instance}-witness", (plan.kafka_topic,), login)
            )
            starts = await reader.ends()
            outward = Outward(settings)
            await outward.start()
            stack.push_async_callback(outward.stop, 0)
            address = parse_mqtt_address(settings.mqtt.addresses[0])
            way = Way(address, settings.mqtt, Login(settings.mqtt, outward.mqtt))
            publisher = await self._connect_publisher(way)
            subject = await self._start_gateway(settings, way, folder)
            witness = asyncio.create_task(self._read_back(reader, starts, publisher))
            try:
                seconds, stalled = await self._flow(publisher, subject, witness)
                await subject.measure()
                commands = await self._try_commands(settings, login, way, subject)
                await self._stop(subject, way)
            finally:
                await end_tasks(witness, failed=lambda _error: None)  # the flow has raised it, or needs it no more
        return self._result(publisher, subject, seconds, stalled, commands)

    # --- resources, each with its undo step

    async def _make_folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"gateway-trial-{self._plan.run}-"))

        async def undo() -> None:
            shutil.rmtree(folder)

        self._cleanup.add(f"folder {folder}", undo, command=f"rm -r {folder}")
        return folder

    async def _make_topics(self, settings: Settings, login: KafkaLogin) -> None:
        plan = self._plan
        if plan.topic is not None:
            self._notes.append(
                f"The trial's records stay in topic {plan.topic}, which was there before, until they expire."
            )
            return
        self._progress(f"creating topic {plan.kafka_topic}")
        topics = Topics(settings.kafka, f"{plan.instance}-admin", login)
        for topic in settings.kafka.topics.declare:
            self._cleanup.add(
                f"Kafka topic {topic.name}",
                partial(self._remove_topic, settings, topic.name),
                command=f"kafka-topics.sh {self._servers} --delete --topic {topic.name}",
                patience_s=_DELETE_S + 5.0,
            )
            try:
                await topics.create([topic.name])
            except RefusedError as error:
                self._cleanup.forget_last()
                raise RefusedError(f"{error} Or name a topic that is there already: --topic.") from error
        await self._wait_listed(settings, login)

    @property
    def _servers(self) -> str:
        return f"--bootstrap-server {','.join(self._base.kafka.bootstrap_servers)}"

    async def _wait_listed(self, settings: Settings, login: KafkaLogin) -> None:
        """Wait until every broker knows the topics."""
        names = [topic.name for topic in settings.kafka.topics.declare]
        deadline = time.monotonic() + _DELETE_S
        while True:
            try:
                async with TopicReader(settings.kafka, self._plan.instance, names, login) as reader:
                    await reader.ends()
                    return
            except (TopicMissingError, UnreachableError):
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def _remove_topic(self, settings: Settings, topic: str) -> None:
        """Delete a topic, and wait until no broker lists it. An interrupted clean-up does not wait for the thread."""
        await asyncio.wrap_future(begun(partial(_delete_topic, settings, topic), "trial"))

    def _clean_up_groups(self, settings: Settings) -> None:
        """Have the consumer groups deleted that the gateway makes for commands."""
        if not settings.commands:
            return
        from gateway.components.commanding import group_name

        for one in settings.commands:
            group = group_name(settings, one)
            self._cleanup.add(
                f"consumer group {group}",
                partial(self._delete_group, settings, group),
                command=f"kafka-consumer-groups.sh {self._servers} --delete --group {group}",
                patience_s=SESSION_S + 10.0,
            )

    async def _delete_group(self, settings: Settings, group: str) -> None:
        """Delete a consumer group. Of a gateway that was killed its member is still there."""
        from gateway.components.commanding import link_client_id

        client_id = f"{self._plan.instance}-admin"
        async with kafka_login(settings.kafka) as login:
            await remove_members(settings.kafka, client_id, group, [link_client_id(settings)], login)
            await delete_group(settings.kafka, client_id, group, login)

    async def _connect_publisher(self, way: Way) -> Publisher:
        self._progress(f"connecting to {way.address}")
        publisher = Publisher(self._plan, way, self._moments)
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

    async def _start_gateway(self, settings: Settings, way: Way, folder: Path) -> Subject:
        self._progress("starting the gateway")
        self._clean_up_groups(settings)
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
        # It crashed or failed. A connection with a clean start ends each session (MQTT 5.0, 3.1.2.4).
        for number in range(way.settings.sessions):
            connection = DeviceConnection(f"{self._plan.instance}-0-{number}", _Nobody(), way)
            with contextlib.suppress(DeviceRefusedError):  # then there was no session
                await connection.connect(timeout_s=_TAKE_OVER_S)
            await connection.disconnect()
        self._ended = True

    # --- messages

    async def _flow(self, publisher: Publisher, subject: Subject, witness: asyncio.Task[None]) -> tuple[float, str]:
        """Publish all messages and wait until they are back. Returns the duration, and why it ended early."""
        loop = asyncio.get_running_loop()
        started_s = self._read_last_s = loop.time()
        plan, tally = self._plan, self._moments.tally
        stall_s = _STALL_S + (1 / plan.rate if plan.rate else 0.0)
        number = given_up = 0  # given up: lost, as QoS 0 may be
        while True:
            now_s = loop.time()
            self._raise_failure(publisher, subject, witness)
            allowed = plan.messages if plan.rate is None else int((now_s - started_s) * plan.rate) + 1
            allowed = min(plan.messages, allowed, tally.distinct + given_up + plan.ahead)
            while number < allowed and publisher.room_for(number):
                publisher.publish(number, plan.payload(number))
                number += 1
            if tally.distinct == plan.messages and publisher.acknowledged >= (plan.messages if plan.qos else 0):
                return self._flowed_s(started_s), ""
            quiet_s = now_s - self._read_last_s
            if now_s - started_s > plan.timeout_s:
                why = f"the time limit of {plan.timeout_s:g} s was reached."
                return self._flowed_s(started_s), why + publisher.trouble + subject.last_log()
            if plan.qos == 0 and quiet_s > _LOST_S and number < plan.messages:
                given_up = number - tally.distinct
            elif quiet_s > stall_s and number > tally.distinct:
                done = number == plan.messages
                why = "" if done else f"nothing came back for {stall_s:g} s."
                return self._flowed_s(started_s), f"{why}{publisher.trouble}{subject.last_log()}".strip()
            publisher.moved.clear()
            await until_set(publisher.moved, 0.02 if plan.rate else 0.1)

    def _flowed_s(self, started_s: float) -> float:
        """Time until the last record, without the wait for further ones."""
        return max(self._read_last_s - started_s, 1e-3)

    def _raise_failure(self, publisher: Publisher, subject: Subject, witness: asyncio.Task[None]) -> None:
        if publisher.error is not None:
            raise publisher.error
        if subject.error is not None:
            raise subject.error
        if witness.done():
            witness.result()

    async def _read_back(self, reader: TopicReader, starts: dict[tuple[str, int], int], publisher: Publisher) -> None:
        """Read the records back as they arrive, and tell the progress twice a second."""
        loop = asyncio.get_running_loop()
        said_s = 0.0
        async for records in reader.follow(starts):
            if records:
                self._note_records(records)
                publisher.moved.set()
            if loop.time() - said_s > 0.5 and self._moments.tally.distinct < self._plan.messages:
                said_s = loop.time()
                self._progress(f"{publisher.sent:,} published, {self._moments.tally.distinct:,} read back")

    def _note_records(self, records: list[LoggedRecord]) -> None:
        now_ns = time.monotonic_ns()
        for record in records:
            number = read_mark(self._run, record.value)
            if number is None:
                continue
            self._read_last_s = asyncio.get_running_loop().time()
            size = len(record.key or b"") + len(record.value or b"")
            size += sum(len(name) + len(value or b"") for name, value in record.headers)
            if self._moments.note_read(number, size, now_ns):
                offsets, numbers = self._offsets.setdefault(record.place.partition, (array("q"), array("q")))
                offsets.append(record.place.offset)
                numbers.append(number)

    # --- commands

    async def _try_commands(
        self, settings: Settings, login: KafkaLogin, way: Way, subject: Subject
    ) -> list[CommandResult]:
        entries = self._plan.commands()
        if not entries:
            return []
        from gateway.tools.trial.commands import CommandTrial

        return [
            await CommandTrial(self._plan, entry, settings, login, way, self._progress).run(subject)
            for entry in entries
        ]

    # --- result

    def _result(
        self, publisher: Publisher, subject: Subject, seconds: float, stalled: str, commands: list[CommandResult]
    ) -> TrialResult:
        plan, moments, tally = self._plan, self._moments, self._moments.tally
        self._note_stored()
        missing = moments.missing()
        return TrialResult(
            run=plan.run,
            qos=plan.qos,
            size=plan.size,
            kafka_topic=plan.kafka_topic,
            wanted=plan.messages,
            sent=publisher.sent,
            acknowledged=sum(1 for at_ns in moments.acknowledged_ns if at_ns),
            delivered=tally.distinct,
            missing=len(missing),
            duplicates=tally.duplicates,
            out_of_order=tally.reordered,
            seconds=seconds,
            messages_per_second=tally.distinct / seconds,
            mqtt_acknowledged=percentiles(moments.since_sent(moments.acknowledged_ns)) if plan.qos else None,
            kafka_acknowledged=percentiles(moments.since_sent(moments.stored_ns)),
            read_back=percentiles(moments.since_sent(moments.read_ns)),
            published_bytes=publisher.sent_bytes,
            record_bytes=moments.bytes,
            batch_bytes=subject.batch_bytes,
            cpu_seconds=subject.cpu_s,
            reconnects=publisher.reconnects,
            stalled=stalled,
            missing_examples=tuple(missing[:_EXAMPLES]),
            left_behind=self._cleanup.left,
            notes=self._notes,
            commands=tuple(commands),
            untried=self._untried(),
        )

    def _untried(self) -> str:
        if self._plan.entries or not self._base.commands:
            return ""
        why = "their topics cannot be made (--topic)" if self._plan.topic is not None else "--commands 0"
        return f"Commands to devices were not tried: {why}. gateway command send --wait sends one."

    def _note_stored(self) -> None:
        """Note when Kafka acknowledged each message: batches have offsets, and the records read back have numbers."""
        for partition, first, count, now_ns in self._batches:
            offsets, numbers = self._offsets.get(partition, (array("q"), array("q")))
            if first < 0 or not offsets:
                continue
            at = bisect_left(offsets, first)
            while at < len(offsets) and offsets[at] < first + count:
                self._moments.stored_ns[numbers[at]] = now_ns
                at += 1


def _delete_topic(settings: Settings, name: str) -> None:
    with KafkaAdmin(settings) as admin:
        with contextlib.suppress(AdminMissingError):
            admin.delete_topic(name)
        deadline = time.monotonic() + _DELETE_S
        if behind := wait_everywhere(admin, [name], lambda found: name not in found, deadline).behind:
            raise AdminRetriableError(f"Kafka accepted to delete it, but {'; '.join(behind)}.")
