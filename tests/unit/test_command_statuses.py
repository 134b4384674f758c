"""What the status topic has is read as it was written, and said in words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.commands.model import ANSWER_LIMIT, OUTCOMES, Answer, Status, StatusRecord
from bridge.commands.status_reading import parse_place, read_status
from bridge.dead_letters.reading import LoggedRecord, Place
from gateway.base import command_metrics
from gateway.cli.device_commands import text
from gateway.cli.device_commands.statuses import Newest, Wanted

PLACE = Place("commands", 3, 1042)
AT = Place("status", 3, 7)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def record(value: bytes | None) -> LoggedRecord:
    return LoggedRecord(AT, 0, b"k", value, [])


def status(kind: Status = Status.SENT, **more: object) -> StatusRecord:
    return StatusRecord(
        id="one", route="switches", status=kind,
        **{"place": PLACE, "device": "pump-7", "terminal": False, "at_ms": 1_763_683_200_123, "deadline_ms": None,
           **more},  # type: ignore[arg-type]
    )  # fmt: skip


@given(
    st.sampled_from(Status), st.none() | TEXT, st.none() | TEXT, st.booleans(), st.none() | st.integers(0, 255),
    st.none() | st.binary(max_size=20),
)  # fmt: skip
def test_a_status_is_read_as_it_was_written(
    kind: Status, device: str | None, reason: str | None, flag: bool, code: int | None, payload: bytes | None
) -> None:
    answer = None if payload is None else Answer(Place("answers", 5, 77), "token", "d", 200, payload, "text/plain", 5)
    written = status(
        kind, device=device, reason=reason, terminal=flag, late=flag, is_ordered=flag, code=code, attempt=3,
        deadline_ms=9, receiver="away", answer=answer,
    )  # fmt: skip
    found = read_status(record(written.value()))
    assert (found.record, found.place, found.id, found.route) == (AT, PLACE, "one", "switches")
    assert (found.status, found.reason, found.is_terminal, found.is_late) == (kind, reason, flag, flag)
    assert (found.is_ordered, found.code, found.attempt, found.deadline_ms) == (flag, code, 3, 9)
    assert found.device == device
    assert (found.at_ms, found.receiver) == (1_763_683_200_123, "away")
    if payload is None:
        assert found.answer is None
    else:
        assert (found.answer.payload, found.answer.code, found.answer.bytes_all) == (payload, 200, None)
        assert (found.answer.record, found.answer.content_type) == (Place("answers", 5, 77), "text/plain")
    json.dumps(text.as_data(found))
    assert text.line(found)


def test_a_long_answer_is_known_to_be_cut() -> None:
    answer = Answer(Place("answers", 5, 77), "token", "d", 200, b"x" * (ANSWER_LIMIT + 5), None, 5)
    found = read_status(record(status(Status.SUCCEEDED, answer=answer).value()))
    assert (len(found.answer.payload), found.answer.bytes_all) == (ANSWER_LIMIT, ANSWER_LIMIT + 5)
    assert len(text.line(found)) < 200


@pytest.mark.parametrize("value", [
    None, b"", b"no json", b"[]", b"[" * 100_000, b"3", b"{}", b'{"command": 5}', b'{"command": "a/1:2"}',
    status().value().replace(b'"attempt":0', b'"attempt":1e999'), status().value().replace(b'"sent"', b'"eaten"'),
    status().value().replace(b"commands/3:1042", b"commands/3"),
])  # fmt: skip
def test_other_records_are_no_statuses(value: bytes | None) -> None:
    assert read_status(record(value)) is None


def test_a_place_is_read_as_it_is_shown() -> None:
    assert parse_place(str(PLACE)) == PLACE
    for other in ("", "one", "a/b", "a/1:", "/1:2", "a/1:2:x", "a/-1:2", "a/1:²"):
        assert parse_place(other) is None


def test_every_outcome_has_words_an_exit_status_and_a_series() -> None:
    assert tuple(map(str, OUTCOMES)) == command_metrics.OUTCOMES, "metrics name them without loading commands"
    good = {kind for kind in OUTCOMES if kind in text.GOOD}
    assert good == {Status.SENT, Status.DELIVERED, Status.SUCCEEDED}
    for kind in Status:
        assert len(text.why(read_status(record(status(kind).value())))) > 10


def test_words_say_what_is_known() -> None:
    def why(kind: Status, **more: object) -> str:
        return text.why(read_status(record(status(kind, **more).value())))

    assert why(Status.SENT, receiver="away").endswith("; the device was away")
    assert why(Status.SENT, receiver="unknown") == "the broker took it, and some subscription matched"
    assert why(Status.UNDELIVERABLE, reason="the broker refuses it (0x87)", code=0x87) == (
        "the broker refuses it (0x87); MQTT reason code 0x87"
    )
    assert why(Status.SUCCEEDED, late=True).endswith("it came late, after timed_out")


def test_what_is_listed() -> None:
    found = read_status(record(status(Status.WAITING).value()))
    assert Wanted().takes(found)
    assert Wanted(devices=("pump-7", "x"), statuses=("waiting",), is_open=True).takes(found)
    assert not Wanted(devices=("x",)).takes(found)
    assert not Wanted(statuses=("sent",)).takes(found)


def test_a_list_keeps_the_newest_and_forgets_what_matches_no_more() -> None:
    def take(newest: Newest, offset: int, kind: Status, *, terminal: bool = False) -> None:
        place = Place("commands", 0, offset)
        value = status(kind, terminal=terminal, place=place, at_ms=offset).value()
        newest.take(read_status(record(value)))

    newest = Newest(Wanted(is_open=True), most=3)
    for offset in range(5):
        take(newest, offset, Status.SENT)
    take(newest, 3, Status.SUCCEEDED, terminal=True)
    assert [one.place.offset for one in newest.sorted()] == [0, 1, 2, 4]
    assert newest.has_all
    for offset in (9, 7):
        take(newest, offset, Status.SENT)
    assert [one.place.offset for one in newest.sorted()] == [4, 7, 9]
    assert not newest.has_all
