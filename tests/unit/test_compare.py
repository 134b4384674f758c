"""Two topics side by side: what counts as missing, as twice, as different, as out of order."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from bridge.dead_letters.reading import LoggedRecord, Place
from config.errors import ExitStatus
from gateway.cli.records.compare import _text
from gateway.tools.migration.compare import Comparison, ComparisonError, Side, Span, Table
from gateway.tools.migration.identity import Reader, parse_identity

ALWAYS = Span(-(1 << 62), 1 << 62, 1 << 61)


class Rec(NamedTuple):
    value: str | None
    partition: int = 0
    key: str = "d"
    at_ms: int = 1000
    headers: tuple[tuple[str, bytes], ...] = ()


def compare(
    left: Sequence[Rec],
    right: Sequence[Rec],
    by: str = "value",
    span: Span = ALWAYS,
    fields: tuple[str | None, str | None] = (None, None),
) -> Comparison:
    with tempfile.TemporaryDirectory() as folder, Table(Path(folder)) as table:
        sides: list[tuple[Side, Sequence[Rec], str | None]] = [("left", left, fields[0]), ("right", right, fields[1])]
        for side, records, field in sides:
            reader = Reader(parse_identity(by), field)
            for offset, one in enumerate(records):
                value = None if one.value is None else one.value.encode()
                place = Place(side, one.partition, offset)
                logged = LoggedRecord(place, one.at_ms, one.key.encode(), value, list(one.headers))
                table.add(side, one.partition, offset, one.at_ms, reader.read(logged))
            table.flush(side)
        return table.compare(span, ("old", "new"), is_named=parse_identity(by).is_of_a_message)


def test_the_same_on_both_sides() -> None:
    records = [Rec(str(n)) for n in range(100)]
    found = compare(records, records)
    assert (found.matched, found.only_left, found.only_right, found.behind) == (100, 0, 0, 0)
    assert found.exit_status is ExitStatus.OK


def test_missing_twice_and_more() -> None:
    found = compare([Rec("a"), Rec("b"), Rec("b"), Rec("c")], [Rec("a"), Rec("b"), Rec("d"), Rec("d")])
    assert (found.only_left, found.only_left_examples) == (1, ("old/0:3",))
    assert (found.only_right, found.only_right_examples) == (1, ("new/0:2",))
    assert (found.left_duplicates, found.right_duplicates, found.fewer_copies) == (1, 1, 1)
    assert found.exit_status is ExitStatus.MISSING_MESSAGES


def test_fewer_copies_are_not_every_message() -> None:
    """A switch that says "on" a hundred times, of which one came."""
    found = compare([Rec("on")] * 100, [Rec("on")])
    assert (found.only_left, found.fewer_copies, found.exit_status) == (0, 99, ExitStatus.UNJUDGED)
    assert "every message" not in _text(found, "old", "new")
    assert "every message" in _text(compare([Rec("on")] * 2, [Rec("on")] * 2), "old", "new")
    named = compare([Rec('{"seq":1}')] * 2, [Rec('{"seq":1}')], by="json:seq")
    assert (named.fewer_copies, named.exit_status) == (1, ExitStatus.OK)
    assert "every message" in _text(named, "old", "new")


def test_differences_of_the_matched() -> None:
    left = [Rec('{"id":1,"v":1}'), Rec('{"id":2,"v":1}', key="x"), Rec('{"id":3}', headers=(("h", b"1"),))]
    right = [
        Rec('{"id":1,"v":2}'),
        Rec('{"id":2,"v":1}', key="y"),
        Rec('{"id":3}', headers=(("h", b"2"), ("gateway.received_ms", b"5"))),
    ]
    found = compare(left, right, by="json:id")
    assert (found.matched, found.differing_values, found.differing_keys, found.differing_headers) == (3, 1, 1, 1)
    assert found.differing_examples == ("old/0:0 and new/0:0", "old/0:1 and new/0:1")


def test_the_first_record_is_compared_though_a_copy_has_an_earlier_time() -> None:
    """As a spool delivers it: behind, with its time of receipt."""
    left = [Rec('{"id":1,"v":1}', at_ms=2000), Rec('{"id":1,"v":2}', at_ms=1000)]
    found = compare(left, [Rec('{"id":1,"v":1}', at_ms=2000)], by="json:id")
    assert (found.matched, found.differing_values) == (1, 0)
    found = compare(left, [], by="json:id", span=Span(0, 1500, 1 << 61))
    assert found.only_left == 1, "its time is the earliest one"


def test_order_is_that_of_each_device_within_a_partition() -> None:
    left = [Rec(f"{device}{n}", key=device) for n in range(4) for device in "ab"]
    right = [Rec(value, key=value[0]) for value in ("a0", "b0", "a2", "a1", "b1", "a3", "b2", "b3")]
    found = compare(left, right)
    assert (found.devices, found.devices_out_of_order, found.behind) == (2, 1, 1)
    assert found.order_examples == ("new/0:3",)
    spread = [Rec(one.value, partition=n % 2, key=one.key) for n, one in enumerate(left)]
    found = compare(left, [*spread[:3], Rec("a3", partition=1, key="a")])
    assert found.behind == 0
    assert found.uncomparable == 1, "a3 lies in another partition than the rest of its device"


def test_the_device_header_tells_devices_apart() -> None:
    device = (("gateway.device", b"one"),)
    right = [Rec("1", key="x", headers=device), Rec("0", key="y", headers=device)]
    assert compare([Rec("0"), Rec("1")], right).devices_out_of_order == 1


@pytest.mark.parametrize("by", ["message_id", "json:id,seq"])
def test_what_has_no_name_is_counted_and_leaves_it_unjudged(by: str) -> None:
    named = Rec('{"id":1,"seq":2}', headers=(("gateway.message_id", b"1-2"),))
    found = compare([named, Rec("{}"), Rec(None)], [named], by=by)
    assert (found.matched, found.left_unnamed, found.only_left) == (1, 2, 0)
    assert found.exit_status is ExitStatus.UNJUDGED


def test_emqx_writes_an_envelope_around_the_payload() -> None:
    left = [Rec(json.dumps({"topic": "t", "payload": payload})) for payload in ('{"a": 1}', "plain")]
    right = [Rec('{"a": 1}'), Rec("plain")]
    found = compare(left, right, fields=("payload", None))
    assert (found.matched, found.only_left, found.differing_values) == (2, 0, 0)


def test_edges_and_recent_ones_are_not_missed() -> None:
    span = Span(since_ms=1000, until_ms=2000, recent_ms=1900)
    left = [Rec("before", at_ms=990), Rec("at-the-edge", at_ms=1001), Rec("gone", at_ms=1500), Rec("new", at_ms=1950)]
    right = [Rec("at-the-edge", at_ms=999), Rec("only-right-before", at_ms=999), Rec("later", at_ms=2001)]
    found = compare(left, right, span=span)
    assert (found.left_different, found.matched, found.only_left, found.recent, found.only_right) == (3, 1, 1, 1, 0)
    assert found.only_left_examples == ("old/0:2",)
    assert compare([Rec("new", at_ms=1950)], [], span=span).exit_status is ExitStatus.UNJUDGED


def test_nothing_on_the_left_is_no_verdict() -> None:
    assert compare([], [Rec("a")]).exit_status is ExitStatus.UNJUDGED


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tools.migration.compare.MOST_RECORDS", 3)
    with pytest.raises(ComparisonError, match="Compare less at a time"):
        compare([Rec(str(n)) for n in range(4)], [])


@pytest.mark.parametrize("text", ["", "json:", "header", "json:a..b", "json:*"])
def test_no_identity(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_identity(text)
