"""The parts of a trial that decide: what is taken away and what is told, the marks, the account, the settings."""

import asyncio
from pathlib import Path

import pytest

from config.errors import ExitStatus
from config.settings import KafkaSettings, MqttSettings, RouteSettings, Settings
from gateway.cli.main import main
from gateway.cli.trial import _text
from gateway.tools.trial.account import Moments, Percentiles, TrialResult, percentiles
from gateway.tools.trial.cleanup import Cleanup
from gateway.tools.trial.plan import DEVICES, TrialPlan, read_mark


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
        moments.found(number, 10, 5000)
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


def test_exit_statuses() -> None:
    assert result().exit_status is ExitStatus.OK
    assert result().cpu_seconds_per_million == 50_000
    assert result(delivered=9, missing=1).exit_status is ExitStatus.MISSING_MESSAGES
    assert result(sent=9, delivered=9).exit_status is ExitStatus.INCOMPLETE
    assert result(left_behind=["x"]).exit_status is ExitStatus.INCOMPLETE
    assert result(stalled="why").exit_status is ExitStatus.INCOMPLETE


def test_the_trials_gateway_takes_brokers_and_logins_alone() -> None:
    base = Settings(
        instance="production",
        mqtt=MqttSettings(addresses=("mqtts://emqx:8883",), username="u", client_id="fixed", share_group="theirs"),
        kafka=KafkaSettings(bootstrap_servers=("kafka:9092",), client_id="fixed"),
        routes=(RouteSettings(name="r", filters=("#",), topic="t"),),
    )
    plan = TrialPlan(run="1a2b3c4d", qos=2)
    settings = plan.settings(base, Path("/nowhere"))
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


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--mqtt", "mqtt://x"],
        ["--mqtt", "mqtt://x", "--kafka", "x:1", "-n", "5000000", "--size", "1000000"],
        ["--mqtt", "mqtt://x", "--kafka", "x:1", "--prefix", "a/#"],
        ["--mqtt", "mqtt://x", "--kafka", "x:1", "--prefix", "$SYS"],
        ["--mqtt", "mqtt://x", "--kafka", "x:1", "--publisher-username", "x"],
    ],
)
def test_arguments_that_cannot_be(arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["trial", *arguments]) == ExitStatus.USAGE


@pytest.mark.parametrize(
    "arguments", [["-n", "0"], ["--size", "31"], ["--qos", "3"], ["--timeout", "nan"], ["-n", "1.5"]]
)
def test_silly_sizes_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trial", *arguments])
    assert ended.value.code == ExitStatus.USAGE
