"""Lines are an event and fields, JSON off a terminal; secrets and payloads do not get through, floods are limited."""

import asyncio
import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import structlog
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import LeaderNotAvailableError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from aiokafka.protocol.metadata import MetadataResponse_v1
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretBytes, SecretStr

from config.settings import LogSettings
from gateway.base.log_limits import FLOOD_INTERVAL_NS, FLOOD_LINES, REPEAT_INTERVAL_NS, RepeatLimiter
from gateway.base.logs import configure, finish, redact
from tests.terminal import Terminal

MASK = "**********"


class Logs:
    """Logging configured on a stream of its own, with a clock that stands still until moved."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.stream = io.StringIO()
        self._undo: Callable[[], None] | None = None
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def configure(
        self,
        level: Literal["debug", "info", "warning", "error"] = "info",
        form: Literal["auto", "json", "console"] = "auto",
        *,
        terminal: bool = False,
        **context: object,
    ) -> structlog.stdlib.BoundLogger:
        self.undo()
        self.stream = Terminal() if terminal else io.StringIO()
        settings = LogSettings(level=level, format=form)
        self._undo = configure(
            settings, context=context, stream=self.stream, now_ns=lambda: self.now_ns,
            later=lambda seconds, look: self.timers.append((seconds, look)),
        )  # fmt: skip
        logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("gateway.test")
        return logger

    def undo(self) -> None:
        if self._undo:
            self._undo()
            self._undo = None

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


@pytest.fixture
def logs() -> Iterator[Logs]:
    logs = Logs()
    yield logs
    logs.undo()


# ---- form ----


def test_a_line_off_a_terminal_is_json_with_what_people_read_first_in_front(logs: Logs) -> None:
    log = logs.configure(instance="a", worker=0).bind(session=2)
    log.info("mqtt_connected", address="127.0.0.1:1883")
    [line] = logs.lines
    assert list(line)[:4] == ["timestamp", "level", "event", "logger"]
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info", "event": "mqtt_connected", "logger": "gateway.test", "instance": "a", "worker": 0,
        "session": 2, "address": "127.0.0.1:1883",
    }  # fmt: skip


def test_a_line_on_a_terminal_is_for_people_and_in_colours_that_can_be_refused(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure(terminal=True).info("mqtt_connected")
    assert "\x1b[" in logs.text
    assert "mqtt_connected" in logs.text
    monkeypatch.setenv("NO_COLOR", "1")
    logs.configure(terminal=True).info("mqtt_connected")
    assert "\x1b[" not in logs.text


def test_the_setting_beats_what_the_stream_is(logs: Logs) -> None:
    logs.configure(form="json", terminal=True).info("one")
    assert logs.events == ["one"]
    logs.configure(form="console").info("two")
    assert "\x1b[" not in logs.text
    assert not logs.text.startswith("{")


@pytest.mark.parametrize(
    ("level", "events"),
    [("debug", ["a", "b", "c", "d"]), ("info", ["b", "c", "d"]), ("warning", ["c", "d"]), ("error", ["d"])],
)
def test_the_level_decides_what_is_written(logs: Logs, level: Any, events: list[str]) -> None:
    log = logs.configure(level)
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert logs.events == events


def test_an_exception_is_a_plain_traceback_without_local_variables(logs: Logs) -> None:
    for form in ("json", "console"):
        log = logs.configure(form=form)
        password = "hunter" + "2"
        try:
            int(f"not a number but {len(password)}")
        except ValueError:
            log.exception("it_failed")
        assert "ValueError: invalid literal" in logs.text
        assert "hunter2" not in logs.text


def test_a_value_json_does_not_know_is_shown_as_its_repr(logs: Logs) -> None:
    logs.configure().info("odd", value=1j)
    assert logs.lines[0]["value"] == "1j"


def test_a_logger_made_before_configuration_follows_it(logs: Logs) -> None:
    early = structlog.stdlib.get_logger("gateway.early")
    logs.configure()
    early.info("one")
    assert logs.events == ["one"]
    logs.configure()
    early.info("two")
    assert logs.events == ["two"]


def test_undo_leaves_the_root_logger_as_it_was(logs: Logs) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers), logging.getLogger("aiokafka").level)
    logs.configure("debug")
    logs.undo()
    assert (root.level, root.handlers, logging.getLogger("aiokafka").level) == before


# ---- libraries ----


def test_a_librarys_message_comes_out_of_the_same_renderer(logs: Logs) -> None:
    logs.configure(instance="a")
    logging.getLogger("aiokafka.conn").error("Unable to connect to %s:%s", "h", 9092)
    [line] = logs.lines
    assert line.pop("timestamp")
    assert line == {
        "level": "error", "event": "library_message", "logger": "aiokafka.conn", "instance": "a",
        "message": "Unable to connect to h:9092",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["aiokafka.producer", "paho.mqtt.client", "aiohttp.access", "asyncio"])
def test_libraries_are_heard_from_warning_up_whatever_the_level(logs: Logs, name: str) -> None:
    logs.configure("debug")
    library = logging.getLogger(name)
    library.debug("a")
    library.info("b")
    library.warning("c")
    assert [line["message"] for line in logs.lines] == ["c"]
    logs.configure("error")
    library.warning("d")
    library.error("e")
    assert [line["message"] for line in logs.lines] == ["e"]


async def test_an_unhandled_error_in_the_event_loop_is_a_line_with_its_traceback(logs: Logs) -> None:
    logs.configure()
    asyncio.get_running_loop().call_soon(lambda: 1 // 0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    [line] = logs.lines
    assert line["logger"] == "asyncio"
    assert "ZeroDivisionError" in line["exception"]


def test_a_topic_that_is_about_to_be_made_is_no_error(logs: Logs) -> None:
    """Red lines of the Kafka library's on a healthy first start; of a missing topic the gateway speaks itself."""
    logs.configure()
    brokers = [(1, "kafka-1", 9092, None)]
    for code in (UnknownTopicOrPartitionError, LeaderNotAvailableError):
        ClusterMetadata().update_metadata(MetadataResponse_v1(brokers, 1, [(code.errno, "telemetry", False, [])]))
    assert not logs.lines
    refused = [(TopicAuthorizationFailedError.errno, "telemetry", False, [])]
    ClusterMetadata().update_metadata(MetadataResponse_v1(brokers, 1, refused))
    assert logs.lines[-1]["message"] == "Topic telemetry is not authorized for this client"


def test_a_warning_is_a_line(logs: Logs) -> None:
    logs.configure()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)  # catch_warnings has put back the function of before
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert logs.lines[0]["event"] == "library_message"
    assert "DeprecationWarning: old" in logs.lines[0]["message"]


# ---- secrets ----


@pytest.mark.parametrize(("fields", "shown"), [
    ({"value": SecretStr("s3cr3t")}, {"value": MASK}),
    ({"value": SecretBytes(b"s3cr3t")}, {"value": MASK}),
    ({"password": "s3cr3t"}, {"password": MASK}),
    ({"sasl_password": "s3cr3t"}, {"sasl_password": MASK}),
    ({"client_secret": "s3cr3t"}, {"client_secret": MASK}),
    ({"Token": "s3cr3t"}, {"Token": MASK}),
    ({"headers": {"Authorization": "Bearer s3cr3t"}}, {"headers": {"Authorization": MASK}}),
    ({"nested": [{"deep": (SecretStr("s3cr3t"),)}]}, {"nested": [{"deep": [MASK]}]}),
    ({"address": "mqtts://user:s3cr3t@broker:8883"}, {"address": f"mqtts://{MASK}@broker:8883"}),
    ({"error": "login failed, password='s3cr3t', user=u"}, {"error": f"login failed, password={MASK}, user=u"}),
    ({"error": ValueError("token: s3cr3t")}, {"error": f"token: {MASK}"}),
    ({"password_file": "/run/secrets/mqtt"}, {"password_file": "/run/secrets/mqtt"}),
    ({"payload": b"s3cr3t"}, {"payload": "<6 bytes>"}),
    ({"payload": bytearray(b"s3cr3t")}, {"payload": "<6 bytes>"}),
    (
        {"address": "mqtt://broker:1883", "topics": ("a", "b")},
        {"address": "mqtt://broker:1883", "topics": ["a", "b"]},
    ),
])  # fmt: skip
@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_and_payloads_are_hidden(logs: Logs, form: Any, fields: dict[str, Any], shown: dict[str, Any]) -> None:
    logs.configure(form=form).info("event", **fields)
    assert "s3cr3t" not in logs.text
    if form == "json":
        [line] = logs.lines
        assert {key: line[key] for key in shown} == shown


def refuse(sentence: str) -> None:
    raise ConnectionError(sentence)


def test_secrets_in_tracebacks_and_library_messages_are_masked(logs: Logs) -> None:
    log = logs.configure()
    try:
        refuse("mqtt://user:s3cr3t@broker refused password=s3cr3t")
    except ConnectionError:
        log.exception("it_failed")
    logging.getLogger("aiokafka.conn").warning("password: %s", "s3cr3t")
    assert len(logs.lines) == 2
    assert "s3cr3t" not in logs.text


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)


@given(
    st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner), max_leaves=30)
)
def test_values_that_are_no_secrets_stay_as_they_are_down_to_the_depth_limit(value: object) -> None:
    def depth(item: object) -> int:
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        return 1 + max((depth(part) for part in inner), default=0) if isinstance(item, dict | list) else 0

    if depth(value) <= 5:
        assert redact(value) == value
    else:
        assert "…" in repr(redact(value))


# ---- floods ----


def test_a_repeat_is_left_out_until_the_interval_is_over_and_then_counted(logs: Logs) -> None:
    log = logs.configure()
    for _ in range(5):
        log.warning("batch_failed", topic="t", repeat_key="t")
    log.warning("batch_failed", topic="u", repeat_key="u")
    log.warning("other_event", repeat_key="t")
    logs.now_ns = REPEAT_INTERVAL_NS - 1
    log.warning("batch_failed", topic="t", repeat_key="t")
    logs.now_ns = REPEAT_INTERVAL_NS
    log.warning("batch_failed", topic="t", repeat_key="t")
    assert [(line["event"], line.get("topic"), line.get("suppressed")) for line in logs.lines] == [
        ("batch_failed", "t", None),
        ("batch_failed", "u", None),
        ("other_event", None, None),
        ("batch_failed", "t", 5),
    ]
    assert "repeat_key" not in logs.text


def test_events_without_a_key_are_written_until_they_are_a_flood(logs: Logs) -> None:
    log = logs.configure()
    for session in range(FLOOD_LINES + 7):
        log.info("mqtt_connected", session=session)
    log.info("another")
    assert len(logs.lines) == FLOOD_LINES + 1
    logs.now_ns = FLOOD_INTERVAL_NS
    log.info("mqtt_connected", session=1)
    assert logs.lines[-1]["suppressed"] == 7


def test_keys_without_end_are_a_flood_too(logs: Logs) -> None:
    """Somebody who guesses names makes a new key with each."""
    log = logs.configure()
    for number in range(5000):
        log.warning("auth_login_refused", username=f"u{number}", repeat_key=f"u{number}")
    assert len(logs.lines) == FLOOD_LINES
    finish()
    left_out = [line for line in logs.lines if line["event"] == "lines_left_out"]
    assert sum(line["count"] for line in left_out) == 5000 - FLOOD_LINES


def test_what_no_line_tells_of_is_told_when_its_interval_is_over(logs: Logs) -> None:
    log = logs.configure(instance="a")
    for _ in range(4):
        log.warning("batch_failed", repeat_key="t")
    [(seconds, look)] = logs.timers
    assert seconds == FLOOD_INTERVAL_NS / 1e9
    logs.now_ns = FLOOD_INTERVAL_NS
    look()
    line = logs.lines[-1]
    assert line.pop("timestamp")
    assert line == {
        "level": "warning", "event": "lines_left_out", "logger": "gateway.base.log_limits", "instance": "a",
        "of": "batch_failed", "of_logger": "gateway.test", "count": 3,
    }  # fmt: skip
    assert len(logs.timers) == 1, "nothing is untold, so nobody looks again"
    look()
    assert len(logs.lines) == 2


def test_a_look_that_comes_too_early_comes_again(logs: Logs) -> None:
    log = logs.configure()
    for _ in range(FLOOD_LINES + 1):
        log.warning("it_failed")
    [(_, look)] = logs.timers
    logs.now_ns = REPEAT_INTERVAL_NS
    look()
    assert len(logs.timers) == 2
    assert "lines_left_out" not in logs.events
    logs.now_ns = FLOOD_INTERVAL_NS
    logs.timers[1][1]()
    assert logs.lines[-1]["count"] == 1


def test_another_line_tells_of_what_is_over(logs: Logs) -> None:
    log = logs.configure()
    for _ in range(2):
        log.error("batch_failed", repeat_key="t")
    logs.now_ns = REPEAT_INTERVAL_NS
    log.info("well_again")
    assert logs.events == ["batch_failed", "well_again"], "the next of its kind may tell of it"
    logs.now_ns = FLOOD_INTERVAL_NS
    log.info("well_again")
    assert logs.events == ["batch_failed", "well_again", "lines_left_out", "well_again"]
    assert logs.lines[2]["level"] == "error"


def test_what_comes_in_bursts_for_many_causes_is_not_told_of_in_lines_of_its_own(logs: Logs) -> None:
    """Two partitions of each of five topics, every 15 s: 50 lines and as many that said that one was left out."""
    log = logs.configure()
    for burst in range(10):
        logs.now_ns = burst * 15_000_000_000
        for topic in range(5):
            for _ in range(2):
                log.warning("spooling", repeat_key=topic)
    assert set(logs.events) == {"spooling"}
    logs.now_ns += FLOOD_INTERVAL_NS
    log.info("well_again")
    assert [line["count"] for line in logs.lines if line["event"] == "lines_left_out"] == [5], "one for the event"
    assert sum(line.get("suppressed", 0) for line in logs.lines) == 45


def test_the_end_tells_of_the_rest_once(logs: Logs) -> None:
    log = logs.configure()
    for _ in range(3):
        log.warning("batch_failed", repeat_key="t")
    for port in (1, 2):
        logging.getLogger("aiokafka.conn").error("Unable to connect to %d", port)
    finish()
    finish()
    left_out = [(line["of"], line["count"]) for line in logs.lines if line["event"] == "lines_left_out"]
    assert left_out == [("batch_failed", 2), ("Unable to connect to %d", 1)]


def test_a_process_that_ends_tells_of_the_rest() -> None:
    """The thread that would have told later does not hold it up."""
    code = (
        "import structlog\n"
        "from config.settings import LogSettings\n"
        "from gateway.base import logs\n"
        "logs.configure(LogSettings(format='json'))\n"
        "for _ in range(3): structlog.stdlib.get_logger('x').warning('it_failed', repeat_key='k')\n"
        "logs.finish()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert [json.loads(line)["event"] for line in ran.stderr.splitlines()] == ["it_failed", "lines_left_out"]


def test_a_librarys_repeats_are_told_by_their_template(logs: Logs) -> None:
    logs.configure()
    library = logging.getLogger("aiokafka.conn")
    for port in range(3):
        library.error("Unable to connect to %d", port)
    library.error("Something else")
    logs.now_ns = REPEAT_INTERVAL_NS
    library.error("Unable to connect to %d", 9)
    assert [(line["message"], line.get("suppressed")) for line in logs.lines] == [
        ("Unable to connect to 0", None),
        ("Something else", None),
        ("Unable to connect to 9", 2),
    ]


def test_the_limiter_forgets_the_oldest_key_beyond_its_bound() -> None:
    limiter = RepeatLimiter(10, max_keys=2)
    assert limiter.admit(("a",), 0) == 0
    assert limiter.admit(("b",), 0) == 0
    assert limiter.admit(("c",), 0) == 0  # a is forgotten
    assert limiter.admit(("b",), 1) is None
    assert limiter.admit(("a",), 1) == 0


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 7), st.booleans()), max_size=150),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_every_line_is_written_or_counted_once(steps: list[tuple[str, int, bool]], lines: int, max_keys: int) -> None:
    limiter = RepeatLimiter(10, lines=lines, max_keys=max_keys)
    now_ns = written = counted = 0
    recent: dict[str, list[int]] = {}
    for key, wait_ns, look in steps:
        now_ns += wait_ns
        if look:
            counted += sum(count for _, count in limiter.untold(now_ns))
        suppressed = limiter.admit((key,), now_ns)
        if suppressed is not None:
            written += 1
            counted += suppressed
            recent.setdefault(key, []).append(now_ns)
    counted += sum(count for _, count in limiter.untold(None))
    assert written + counted == len(steps)
    assert not limiter.pending
    if max_keys == 4:  # none was forgotten
        for moments in recent.values():
            for first, beyond in zip(moments, moments[2 * lines :], strict=False):
                assert beyond - first >= 10, "more than two intervals' worth within one"


def test_a_name_from_outside_does_not_write_on_the_terminal(logs: Logs) -> None:
    logs.configure(form="console").warning("odd", topic="a\x1b[2Jb", other="\x9b2J")
    assert r"a\x1b[2Jb" in logs.text
    assert r"\x9b2J" in logs.text
    assert "\x1b[2J" not in logs.text
    assert "\x9b" not in logs.text
