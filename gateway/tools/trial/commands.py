"""Tries one ``[[commands]]``: writes commands to Kafka, plays their devices, and follows their statuses."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bridge.commands.plan import CommandPlan
from bridge.commands.status_reading import read_status
from bridge.kafka.reader import TopicReader
from bridge.waiting import end_tasks, until_set
from config.relations.commands import as_filter
from gateway.devices.device import DeviceConnectError, DeviceConnection, Heard, Way
from gateway.mqtt import reasons
from gateway.tools.send_command import CommandWriter, Draft
from gateway.tools.trial.account import CommandMoments, CommandResult
from gateway.tools.trial.plan import DEVICES, TrialCommands, TrialPlan, read_mark

if TYPE_CHECKING:
    from bridge.kafka.login import KafkaLogin
    from config.settings import Settings
    from gateway.tools.trial.process import Subject

_SUBJECT: Final = "trial"
_TIMEOUT_S: Final = 10.0
_JOIN_S: Final = 30.0  # for the gateway to join the group and to connect
_STALL_S: Final = 10.0  # longest time in which nothing happens to any command
_LOOK_S: Final = 0.1
_FAILURE: Final = 0x80


class CommandTrial:
    """Commands of one entry, and the connection of the devices that they are for. A device has one of them at a time,
    so that none waits for an earlier one, and every latency is one of its own."""

    def __init__(
        self,
        plan: TrialPlan,
        entry: TrialCommands,
        settings: Settings,
        login: KafkaLogin,
        way: Way,
        progress: Callable[[str], None],
    ) -> None:
        self._plan, self._entry, self._one = plan, entry, entry.settings
        self._settings, self._login, self._way, self._progress = settings, login, way, progress
        self._client_id = f"{plan.instance}-{self._one.name}"
        self._run = plan.run.encode()
        self._topics = CommandPlan.from_settings(self._one)
        self._moments = CommandMoments(plan.commands_each, is_answered=entry.answers is not None)
        self._numbers = {self._id(number): number for number in range(plan.commands_each)}
        self._connection: DeviceConnection | None = None
        self._last_s = 0.0
        self._moved = asyncio.Event()  # something became of a command
        self._trouble = ""

    async def run(self, subject: Subject) -> CommandResult:
        """Try the commands of the entry. Raises GatewayError when Kafka cannot be read or written any more, or the
        gateway ends."""
        async with contextlib.AsyncExitStack() as stack:
            trouble = await self._connect(stack) or await self._wait_ready(subject)
            if not trouble:
                topics = (self._one.status_topic,)
                reader = await stack.enter_async_context(
                    TopicReader(self._settings.kafka, self._client_id, topics, self._login)
                )
                starts = await reader.ends()
                writer = await stack.enter_async_context(
                    CommandWriter(self._settings.kafka, self._client_id, self._one, self._login)
                )
                witness = asyncio.create_task(self._follow(reader, starts))
                try:
                    trouble = await self._flow(writer, subject, witness)
                finally:
                    await end_tasks(witness, failed=lambda _error: None)  # the flow has raised it, or needs it no more
        return self._moments.result(self._one.name, self._one.qos, self._entry.not_judged, trouble)

    # --- the devices

    async def _connect(self, stack: contextlib.AsyncExitStack) -> str:
        """Connect and subscribe. Returns why that is not possible."""
        topic_filter = as_filter(self._one.mqtt_topic)
        connection = DeviceConnection(self._client_id, self, self._way)
        try:
            await connection.connect(timeout_s=_TIMEOUT_S, login=self._plan.publisher)
            stack.push_async_callback(connection.disconnect)
            async with asyncio.timeout(_TIMEOUT_S):
                code = await connection.subscribe(topic_filter, self._obey, qos=max(1, self._one.qos))
        except DeviceConnectError as error:
            return str(error)
        except TimeoutError:
            return f"the MQTT broker did not answer the devices' subscription within {_TIMEOUT_S:g} s."
        self._connection = connection
        return self._refusal(f"subscribe to {topic_filter}", code)

    def _refusal(self, what: str, code: int) -> str:
        """The sentence about a refusal of the broker; empty for a code that is none."""
        if code < _FAILURE:
            return ""
        user = self._way.settings.username if self._plan.publisher is None else self._plan.publisher[0]
        return (
            f"the MQTT broker does not let the devices {what}: {reasons.words(code)}. "
            f"{self._plan.missing_right(user, 'subscribe')}"
        )

    def _obey(self, heard: Heard) -> None:
        """Note a command that came to a device, and answer it if the entry has answers."""
        number = read_mark(self._run, heard.payload)
        if number is None or self._connection is None:
            return
        self._moments.received(number, time.monotonic_ns())
        self._note_progress()
        if self._entry.answers is None:
            return
        if heard.response_topic is not None:
            self._connection.answer(heard, b"{}", 200)
            return
        device = _device(number)  # MQTT 3.1.1: what identifies the command is in its topic
        before, _, after = self._topics.topic(device, _SUBJECT, "${id}").partition("${id}")
        token = heard.topic[len(before) : len(heard.topic) - len(after)]
        self._connection.publish(f"{self._topics.response_topic(device)}/{token}/200", b"{}")

    def on_acknowledged(self, packet_id: int, reason: int) -> None:  # noqa: ARG002 - an answer is as good as another
        if reason < _FAILURE:
            self._moments.answers += 1
        else:
            self._trouble = self._refusal(f"answer to {as_filter(self._one.response_topic)}", reason)

    def on_lost(self, why: str) -> None:
        """The connection calls it. It is not made again: ``_flow`` ends then."""
        self._connection = None
        if not self._trouble:
            self._trouble = f"the devices' connection to the MQTT broker was lost: {why}."
            if self._entry.answers is not None and not self._moments.answers:
                self._trouble += f" Mosquitto does so if they may not publish to {as_filter(self._one.response_topic)}."
        self._moved.set()

    # --- commands and their statuses

    async def _wait_ready(self, subject: Subject) -> str:
        """Wait until the gateway takes commands. Returns why it does not."""
        loop = asyncio.get_running_loop()
        patience_s = _JOIN_S + self._one.settle.total_seconds()
        until_s = loop.time() + patience_s
        self._progress(f"commands {self._one.name!r}: the gateway joins its consumer group")
        while True:
            if subject.error is not None:
                raise subject.error
            partitions, problem = subject.commands.get(self._one.name, (0, ""))
            if partitions == self._plan.partitions:
                return ""
            if loop.time() > until_s:
                return f"the gateway did not take commands within {patience_s:g} s. {problem}".rstrip()
            await asyncio.sleep(_LOOK_S)

    async def _flow(self, writer: CommandWriter, subject: Subject, witness: asyncio.Task[None]) -> str:
        """Write all commands and wait for their ends. Returns why it ended early."""
        loop, plan, one, moments = asyncio.get_running_loop(), self._plan, self._one, self._moments
        started_s = self._last_s = loop.time()
        stall_s = _STALL_S + max(1 / (one.rate or 1), 1 / (one.rate_per_device or 1))
        number = 0
        while True:
            if subject.error is not None:
                raise subject.error
            if witness.done():
                witness.result()
            allowed = plan.commands_each
            if one.rate is not None:
                allowed = min(allowed, int((loop.time() - started_s) * one.rate) + 1)
            while number < allowed and moments.has_ended(number - DEVICES):  # the one before it for its device
                await self._write(writer, number)
                number += 1
            if number == plan.commands_each and moments.is_complete:
                return self._trouble
            if self._connection is None:
                return self._trouble
            if loop.time() - started_s > plan.timeout_s:
                return f"{self._trouble} The time limit of {plan.timeout_s:g} s was reached.".lstrip()
            if loop.time() - self._last_s > stall_s:
                return f"{self._trouble} Nothing happened to the open commands for {stall_s:g} s.".lstrip()
            self._moved.clear()
            await until_set(self._moved, _LOOK_S)
            self._progress(f"commands {one.name!r}: {number:,} written, {moments.ended:,} finished")

    async def _write(self, writer: CommandWriter, number: int) -> None:
        draft = Draft(
            _device(number),
            self._plan.mark(number),
            subject=_SUBJECT,
            id=self._id(number),
            is_answer_asked=self._entry.answers is not None,
        )
        now_ns = time.monotonic_ns()
        place = await writer.write(draft.record(self._one, time.time_ns() // 1_000_000))
        self._moments.wrote(number, place, now_ns)
        self._note_progress()

    async def _follow(self, reader: TopicReader, starts: dict[tuple[str, int], int]) -> None:
        """Note the statuses of the trial's commands as they come; does not end by itself."""
        async for records in reader.follow(starts):
            now_ns = time.monotonic_ns()
            for record in records:
                status = read_status(record)
                number = None if status is None else self._numbers.get(status.id)
                if status is not None and number is not None:
                    self._moments.note_status(number, status, record.value or b"", now_ns)
                    self._note_progress()

    def _note_progress(self) -> None:
        self._last_s = asyncio.get_running_loop().time()
        self._moved.set()

    def _id(self, number: int) -> str:
        return f"{self._plan.instance}-{number}"


def _device(number: int) -> str:
    return f"d{number % DEVICES:02}"
