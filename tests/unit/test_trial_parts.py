"""The parts of a trial that decide: what is taken away and what is told, the marks, the account, the settings."""

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.commands.status_reading import read_status
from bridge.dead_letters.reading import LoggedRecord, Place
from config.errors import ExitStatus
from config.settings import KafkaSettings, MqttSettings, RouteSettings, Settings
from config.tables.commands import CommandSettings
from gateway.cli.trial import _text, _trial
from gateway.devices.device import DeviceConnectError, DeviceConnection, DeviceRefusedError, Way
from gateway.tools.trial.account import CommandMoments, CommandResult, Moments, Percentiles, TrialResult, percentiles
from gateway.tools.trial.cleanup import Cleanup
from gateway.tools.trial.plan import DEVICES, TrialPlan, read_mark
from gateway.tools.trial.publisher import Publisher
from gateway.tools.trial.run import Trial
from tests.command_line import Cli
from tests.unit.manual_time import at_end, manual_time


async def test_what_was_made_last_goes_first_and_failures_are_named() -> None:
    done: list[str] = []
    cleanup = Cleanup()

    async def undo(name: str) -> None:
        done.append(name)
        if name == "two":
            raise OSError("the disk is gone")

    async def hang() -> None:
        await asyncio.Event().wait()

    for name in ("one", "two", "three"):
        cleanup.add(name, lambda name=name: undo(name), command=f"rm {name}")  # type: ignore[misc]
    cleanup.add("four", hang, command="wait", patience_s=0.01)
    await cleanup.run()
    assert done == ["three", "two", "one"]
    assert [(one.what, one.why, one.command) for one in cleanup.left] == [
        ("four", "it took longer than 0.01 s", "wait"),
        ("two", "the disk is gone", "rm two"),
    ]
    await cleanup.run()
    assert done == ["three", "two", "one"], "each once"


async def test_an_interrupted_clean_up_names_everything_that_is_left() -> None:
    cleanup = Cleanup()
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    for name in ("one", "two"):
        cleanup.add(name, hang, command="")
    cleaning = asyncio.create_task(cleanup.run())
    await reached.wait()
    cleaning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cleaning
    assert [one.what for one in cleanup.left] == ["two", "one"]


async def test_what_a_second_ctrl_c_leaves_is_named_when_it_comes_before_the_clean_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow:
        def __init__(self, _plan: TrialPlan, _base: Settings, cleanup: Cleanup, _tell: Callable[[str], None]) -> None:
            cleanup.add("a topic", asyncio.Event().wait, command="")  # type: ignore[arg-type]  # its result is not used

        async def run(self) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    monkeypatch.setattr("gateway.cli.trial.Trial", Slow)
    monkeypatch.setattr("gateway.cli.trial._report", lambda _plan, _work, cleanup, *_, **_json: len(cleanup.left))
    assert await _trial(TrialPlan(run="1a2b3c4d"), Settings(), json=True) == 1


@pytest.mark.parametrize("size", [32, 33, 200, 100_000])
def test_payloads_have_their_size_and_number(size: int) -> None:
    plan = TrialPlan(run="1a2b3c4d", size=size, messages=5_000_000)
    for number in (0, 7, 4_999_999):
        payload = plan.payload(number)
        assert len(payload) == size
        assert read_mark(b"1a2b3c4d", payload) == number
        assert read_mark(b"ffffffff", payload) is None


@pytest.mark.parametrize("value", [None, b"", b"trial", b"trial 1a2b3c4d x y", b"trial 1a2b3c4d 5", b"\xff" * 50])
def test_records_of_others_have_no_mark(value: bytes | None) -> None:
    assert read_mark(b"1a2b3c4d", value) is None


def test_the_account_knows_duplicates_order_and_what_is_missing() -> None:
    moments = Moments(4 * DEVICES, DEVICES)
    for number in range(4 * DEVICES):
        moments.sent_ns[number] = 1000 + number
        moments.acknowledged_ns[number] = 2000
    for number in (0, DEVICES * 2, DEVICES, DEVICES, 1, 10**9, -1):
        moments.note_read(number, 10, 5000)
    tally = moments.tally
    assert (tally.distinct, tally.duplicates, tally.reordered, moments.bytes) == (4, 1, 1, 50)
    assert len(moments.missing()) == 4 * DEVICES - 4
    assert sorted(moments.since_sent(moments.read_ns)) == sorted(5000 - 1000 - n for n in (0, DEVICES * 2, DEVICES, 1))


def test_percentiles() -> None:
    assert percentiles([]) is None
    assert percentiles([5_000_000_000]) == Percentiles(5.0, 5.0, 5.0)
    assert percentiles(list(range(1000, 0, -1))) == Percentiles(501e-9, 991e-9, 1000e-9)


def result(**changes: object) -> TrialResult:
    values: dict[str, object] = {
        "run": "r", "qos": 1, "size": 1, "kafka_topic": "t", "wanted": 10, "sent": 10, "acknowledged": 10,
        "delivered": 10, "missing": 0, "duplicates": 0, "out_of_order": 0, "seconds": 1.0, "messages_per_second": 10.0,
        "mqtt_acknowledged": None, "kafka_acknowledged": None, "read_back": None, "published_bytes": 1,
        "record_bytes": 1, "batch_bytes": 1, "cpu_seconds": 0.5, "reconnects": 0,
    }  # fmt: skip
    return TrialResult(**{**values, **changes})  # type: ignore[arg-type]


def test_what_is_not_tried_is_said_and_is_nothing_left_behind() -> None:
    told = _text(result(untried="Commands to devices were not tried."))
    assert "  Commands to devices were not tried." in told.splitlines()
    assert told.endswith("nothing is left behind.")
    assert "not tried" not in _text(result())


# --- commands


def told(moments: CommandMoments, number: int, status: str, at_ns: int, *, terminal: bool = True) -> None:
    """A status of the command whose record has that offset."""
    fields = {
        "id": str(number), "command": f"c/0:{number}", "route": "r", "device": "d", "status": status, "attempt": 1,
        "terminal": terminal, "at_ms": 0, "deadline_ms": 0, "reason": "it is old" if status == "expired" else None,
    }  # fmt: skip
    record = LoggedRecord(Place("s", 0, number), 0, b"", json.dumps(fields).encode(), [])
    found = read_status(record)
    assert found is not None
    moments.note_status(number, found, record.value or b"", at_ns)


def tried(*outcomes: str, is_answered: bool = True, unheard: tuple[int, ...] = ()) -> CommandMoments:
    """Commands that were written at 1,000 ns, reached their device at 2,000, and ended so at 5,000; "" for never."""
    moments = CommandMoments(len(outcomes), is_answered=is_answered)
    for number, outcome in enumerate(outcomes):
        moments.wrote(number, Place("c", 0, number), 1000)
        if number not in unheard:
            moments.received(number, 2000)
        if is_answered:
            told(moments, number, "sent", 3000, terminal=False)
        if outcome:
            told(moments, number, outcome, 5000)
    return moments


def judged(moments: CommandMoments, stalled: str = "") -> CommandResult:
    return moments.result("switches", 1, (), stalled)


def test_commands_that_their_devices_answered_are_well() -> None:
    moments = tried("succeeded", "succeeded")
    moments.answers = 2
    one = judged(moments)
    assert moments.is_complete
    assert (one.exit_status, one.missing, one.account.finished) == (ExitStatus.OK, 0, {"succeeded": 2})
    assert (one.to_device, one.to_sent, one.to_succeeded) == tuple(
        Percentiles(*[ns / 1e9] * 3) for ns in (1e3, 2e3, 4e3)
    )
    assert one.account.answers == 2


def test_without_answers_a_command_ends_as_sent() -> None:
    one = judged(tried("sent", is_answered=False))
    assert (one.exit_status, one.expected, one.to_succeeded) == (ExitStatus.OK, "sent", None)


def test_every_other_end_is_missing_and_named() -> None:
    moments = tried("succeeded", "timed_out", "expired", "timed_out", "")
    assert moments.has_ended(-1)
    assert moments.has_ended(3)
    assert not moments.has_ended(4)
    assert not moments.is_complete
    one = judged(moments, "Nothing happened.")
    assert one.exit_status is ExitStatus.MISSING_MESSAGES
    assert one.faults == {"timed_out": 2, "expired: it is old": 1, "without a last status": 1}
    assert one.account.under_way == 1
    text = _text(result(commands=(one,)))
    assert "missing" in text
    assert "2 timed_out, 1 expired: it is old" in text
    assert text.endswith("MISSING: 4 commands of 'switches' did not reach a device, or did not end as succeeded.")
    assert "arrived" not in text


def test_a_word_that_no_device_confirms_counts_for_nothing() -> None:
    moments = tried("sent", "sent", is_answered=False, unheard=(1,))
    assert not moments.is_complete, "it may still come"
    assert judged(moments).faults == {"sent, and no device has it": 1}
    assert judged(moments).exit_status is ExitStatus.MISSING_MESSAGES


def test_two_last_statuses_contradict_each_other_and_a_late_one_does_not() -> None:
    moments = tried("succeeded")
    told(moments, 0, "timed_out", 6000)
    one = judged(moments)
    assert one.exit_status is ExitStatus.MISSING_MESSAGES
    assert "CONTRADICTING: 1 commands of 'switches'" in _text(result(commands=(one,)))


def test_copies_are_counted_and_allowed() -> None:
    moments = tried("succeeded")
    moments.received(0, 9000)
    one = judged(moments)
    assert (one.exit_status, one.account.copies, one.account.received) == (ExitStatus.OK, 1, 1)
    assert one.to_device == Percentiles(1e-6, 1e-6, 1e-6), "the first one counts"


def test_commands_that_were_not_written_are_not_green() -> None:
    one = CommandMoments(3, is_answered=True).result("switches", 1, ("presence: none",), "no group")
    assert (one.exit_status, one.missing) == (ExitStatus.INCOMPLETE, 0)
    text = _text(result(commands=(one,)))
    assert "  Trouble: no group" in text
    assert "  Not judged: presence: none." in text
    assert text.endswith("Only 0 of 3 commands of 'switches' were written; none of these is missing.")
    assert result(commands=(one,)).exit_status is ExitStatus.INCOMPLETE


def test_an_entry_keeps_its_ways_and_gets_names_of_its_own() -> None:
    one = CommandSettings(
        name="switches", topics=("commands", "more"), status_topic="statuses", group="theirs", answers="answers",
        mqtt_topic="devices/${device}/req/${subject}/${id}", delivered_by="acked", confirm="delivered",
        release="delivered", presence="births", rate=5.0, max_payload_bytes=1,
    )  # fmt: skip
    plan = TrialPlan(run="1a2b3c4d", prefix="a/b", entries=(one, one.model_copy(update={"name": "loose", "qos": 0})))
    settings = plan.settings(Settings(), Path("/nowhere"))
    switches, loose = settings.commands
    assert switches.topics == ("gateway-trial-1a2b3c4d-switches-commands",)
    assert switches.mqtt_topic == "a/b/1a2b3c4d/commands/switches/req/devices/${device}/req/${subject}/${id}"
    assert (switches.group, switches.rate, switches.answers) == ("", 5.0, "answers-0")
    assert (switches.delivered_by, switches.presence) == (None, None)
    assert (switches.confirm, switches.release) == ("sent", "sent")
    assert switches.max_payload_bytes >= len(plan.mark(99_999))
    assert loose.answers is None, "of a message of QoS 0 no answer is awaited"
    assert [text.split()[0] for text in plan.commands()[0].not_judged] == ["deliveries", "presence:"]
    trial, answers = settings.routes
    assert trial.filters == ("a/b/1a2b3c4d/0/+",), "no command comes back by it"
    assert answers.filters == ("a/b/1a2b3c4d/commands/switches/res/+/#",)
    assert answers.device == "${topic[6]}", "the level after res"
    assert all(topic.name.startswith("gateway-trial-1a2b3c4d") for topic in settings.kafka.topics.declare)
    names = {topic.name for topic in settings.kafka.topics.declare}
    ours = {plan.kafka_topic, answers.topic, switches.status_topic, loose.status_topic}
    assert names == {*ours, *switches.topics, *loose.topics}
    assert "--action" not in TrialPlan(run="r", publisher=("u", "p"), entries=(one,)).missing_right("u", "publish")


@manual_time
async def test_the_pause_of_a_slow_rate_is_no_standstill() -> None:
    loop = asyncio.get_running_loop()
    trial: Any = Trial(TrialPlan(run="1a2b3c4d", messages=3, rate=0.05), Settings(), Cleanup(), print)

    class Devices:
        error, acknowledged, moved = None, 0, asyncio.Event()

        def room_for(self, _number: int) -> bool:
            return True

        def publish(self, number: int, payload: bytes) -> None:
            loop.call_soon(self.read_back, LoggedRecord(Place("t", 0, number), 0, None, payload, []))

        def read_back(self, record: LoggedRecord) -> None:
            trial._note_records([record])
            self.acknowledged += 1

    gateway = SimpleNamespace(error=None, last_log=lambda: "")
    _, trouble = await trial._flow(Devices(), gateway, loop.create_future())
    assert trouble == ""


@manual_time
async def test_a_publisher_that_cannot_connect_again_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TrialPlan(run="1a2b3c4d", messages=3)
    trial: Any = Trial(plan, Settings(), Cleanup(), print)
    publisher = Publisher(plan, Way.plain("127.0.0.1", 1), trial._moments)
    refusal: list[DeviceConnectError] = []

    async def connect(_connection: DeviceConnection, **_options: object) -> None:
        if refusal:
            raise refusal[0]

    monkeypatch.setattr(DeviceConnection, "connect", connect)
    monkeypatch.setattr(DeviceConnection, "publish", lambda *_arguments, **_options: 1)
    monkeypatch.setattr(DeviceConnection, "keep_alive", lambda _connection: None)
    await publisher.connect()
    at_end(publisher.close)
    gateway = SimpleNamespace(error=None, last_log=lambda: " Its log says last: x")
    flowing = asyncio.create_task(trial._flow(publisher, gateway, asyncio.get_running_loop().create_future()))
    await asyncio.sleep(1)
    refusal.append(DeviceRefusedError("device p: the MQTT broker refused the connection: not authorised"))
    for line in publisher._lines:
        line.on_lost("the broker ended it")
    _, trouble = await flowing
    assert trouble == ("device p: the MQTT broker refused the connection: not authorised. Its log says last: x")
    refusal.clear()
    await asyncio.sleep(2)
    assert publisher.trouble == ""


def test_exit_statuses() -> None:
    assert result().exit_status is ExitStatus.OK
    assert result().cpu_seconds_per_million == 50_000
    assert result(delivered=9, missing=1).exit_status is ExitStatus.MISSING_MESSAGES
    assert result(sent=9, delivered=9).exit_status is ExitStatus.INCOMPLETE
    unacknowledged = result(acknowledged=8, delivered=8)
    assert unacknowledged.exit_status is ExitStatus.INCOMPLETE
    assert _text(unacknowledged).endswith("2 messages did not arrive; nor has the MQTT broker acknowledged them.")
    assert result(left_behind=["x"]).exit_status is ExitStatus.INCOMPLETE
    assert result(stalled="why").exit_status is ExitStatus.INCOMPLETE


def test_the_trials_gateway_takes_brokers_and_logins_alone() -> None:
    base = Settings(
        instance="production",
        mqtt=MqttSettings(addresses=("mqtts://emqx:8883",), username="u", client_id="fixed", share_group="theirs"),
        kafka=KafkaSettings(bootstrap_servers=("kafka:9092",), client_id="fixed"),
        routes=(RouteSettings(name="r", filters=("#",), topic="t"),),
    )
    settings = TrialPlan(run="1a2b3c4d", qos=2).settings(base, Path("/nowhere"))
    assert settings.mqtt.addresses == base.mqtt.addresses
    assert settings.mqtt.username == "u"
    assert settings.kafka.bootstrap_servers == base.kafka.bootstrap_servers
    assert settings.mqtt.client_id == "${instance}-${worker}-${session}", "its sessions end nobody else's"
    assert settings.mqtt.share_group == settings.instance == "trial-1a2b3c4d"
    assert not settings.mqtt.status.enabled, "nothing is retained"
    assert settings.mqtt.session_expiry.total_seconds() == 60
    assert settings.ledger.topic == ""
    assert not settings.kafka.topics.create, "the worker makes no topic"
    (route,) = settings.routes
    assert (route.topic, route.filters, route.qos) == ("gateway-trial-1a2b3c4d", ("gateway-trial/1a2b3c4d/0/+",), 2)


def test_sessions_with_filters_of_their_own_get_one_each() -> None:
    mqtt = MqttSettings(distribution="partitioned", sessions=3)
    plan = TrialPlan(run="1a2b3c4d")
    (route,) = plan.settings(Settings(mqtt=mqtt), Path("/nowhere")).routes
    assert len(route.filters) == 3
    assert {topic.split("/")[2] for topic in plan.mqtt_topics(mqtt)} == {"0", "1", "2"}


@pytest.mark.parametrize("arguments", [
    "", "--mqtt mqtt://x", "-n 0", "--size 31", "--qos 3", "--timeout nan", "-n 1.5",
    *(f"--mqtt mqtt://x --kafka x:1 {more}"
      for more in ("-n 5000000 --size 1000000", "--prefix a/#", "--prefix $SYS", "--publisher-username x")),
])  # fmt: skip
def test_arguments_that_cannot_be(cli: Cli, arguments: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    cli("trial", *arguments.split(), status=ExitStatus.USAGE)
