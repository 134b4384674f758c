"""``gateway verify --commands`` notices a command without an outcome and one with two, and says what it cannot know."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

import pytest

from bridge.commands.model import Answer, Status, StatusRecord
from bridge.commands.ports import Committed, Partition
from bridge.dead_letters.reading import LoggedRecord, Place
from config.errors import ExitStatus
from config.tables.commands import CommandSettings
from gateway.cli.records.commands_text import as_document, as_text
from gateway.cli.table import as_json
from gateway.tools.verify.check import Span
from gateway.tools.verify.command_check import CommandVerdict, exit_status, verify_commands

COMMANDS = CommandSettings.model_validate({"name": "switches", "topics": ["commands"], "status_topic": "status"})
SECOND_MS = 1000


class FakeLog:
    """``KafkaCommandLog`` in memory: one partition of commands, whose record n has the time of n seconds."""

    def __init__(self, count: int, commit: str | None, *, low: int = 0) -> None:
        self.first = {("commands", 0): 0, ("status", 0): 0}
        self.records: dict[Partition, list[LoggedRecord]] = {("commands", 0): [], ("status", 0): []}
        self.commit = None if commit is None else Committed(low, f"1|0|{commit}")
        for _ in range(count):
            self.command()

    def command(self, *headers: tuple[str, bytes]) -> None:
        log = self.records["commands", 0]
        log.append(LoggedRecord(Place("commands", 0, len(log)), len(log) * SECOND_MS, b"d", b"", list(headers)))

    def status(self, offset: int, status: Status, *, terminal: bool = True, **more: object) -> None:
        place, log = Place("commands", 0, offset), self.records["status", 0]
        record = StatusRecord(
            id=str(more.pop("id", place)), place=place, route=str(more.pop("route", "switches")), device="d",
            status=status, terminal=terminal, at_ms=more.pop("at_ms", offset * SECOND_MS), deadline_ms=None, **more,  # type: ignore[arg-type]
        )  # fmt: skip
        at = Place("status", 0, len(log))
        log.append(LoggedRecord(at, offset * SECOND_MS + 1, record.key(), record.value(), []))

    def finish(self, *offsets: int, status: Status = Status.SUCCEEDED) -> None:
        for offset in offsets:
            self.status(offset, status)

    async def commits(self, group: str) -> Mapping[Partition, Committed | None]:
        assert group == "group"
        return {("commands", 0): self.commit}

    async def beginnings(self) -> Mapping[Partition, int]:
        return self.first

    async def ends(self) -> Mapping[Partition, int]:
        return {at: len(log) for at, log in self.records.items()}

    async def offsets_at(self, moment_ms: int) -> Mapping[Partition, int]:
        return {
            at: next((n for n, one in enumerate(log) if one.timestamp_ms >= moment_ms), len(log))
            for at, log in self.records.items()
        }

    async def read(self, starts: Mapping[Partition, int], ends: Mapping[Partition, int]) -> AsyncIterator[LoggedRecord]:
        for at, end in ends.items():
            assert starts[at] >= self.first[at], "these are deleted"
            for record in self.records[at][starts[at] : end]:
                yield record

    def verify(self, since_ms: int | None = None, until_ms: int | None = None) -> CommandVerdict:
        verdict = asyncio.run(verify_commands(self, COMMANDS, "group", Span(since_ms, until_ms)))
        (one,) = verdict.accounts
        counted = one.finished + one.waiting + one.under_way + one.unread + one.missing + one.unjudged
        assert one.records == counted, "the account does not balance"
        assert "commands/0" in as_text([verdict])
        assert json.loads(as_json(as_document([verdict])))["status"] == exit_status([verdict]) == verdict.exit_status
        return verdict


def test_each_has_one_outcome_or_waits_or_is_under_way() -> None:
    log = FakeLog(10, "F1A2T2", low=3)
    log.finish(0, 1, 3)
    log.finish(2, status=Status.EXPIRED)
    log.status(4, Status.SENT, terminal=False)
    log.finish(5)  # finished since the commit
    log.status(6, Status.SENT, terminal=False)  # sent since the commit
    log.status(8, Status.ACCEPTED, terminal=False)  # taken since the commit
    verdict = log.verify()
    (one,) = verdict.accounts
    assert (one.records, one.finished, one.under_way, one.waiting, one.unread) == (10, 5, 2, 2, 1)
    assert one.outcomes == {"succeeded": 4, "expired": 1}
    assert verdict.exit_status is ExitStatus.OK
    text = as_text([verdict])
    assert "Outcomes: succeeded 4, expired 1." in text
    assert "Every command that is finished has one terminal status." in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("lost", [0, 2, 4])
def test_a_finished_command_without_an_outcome_is_missing(lost: int) -> None:
    """Behind the low-water mark and beyond it."""
    log = FakeLog(5, "T1F1", low=3)
    log.finish(*({0, 1, 2, 4} - {lost}))
    log.status(lost, Status.SENT, terminal=False)
    verdict = log.verify()
    assert verdict.exit_status is ExitStatus.MISSING_MESSAGES
    (wrong,) = verdict.wrong
    assert wrong.startswith("commands/0: 1 of 5 commands are finished by the commit, and have no terminal status")
    assert wrong.endswith(f"offsets {lost}")
    assert f"WRONG: {wrong}." in as_text([verdict])
    assert exit_status([FakeLog(0, None).verify(), verdict]) is ExitStatus.MISSING_MESSAGES, "the gravest of all"


def test_two_outcomes_are_wrong_but_for_a_late_answer() -> None:
    log = FakeLog(4, "", low=4)
    answer = Answer(Place("answers", 0, 0), "", "d", 200, b"", None, 0)
    log.finish(0, 1, 2, 2)  # a copy of the same one
    log.status(0, Status.TIMED_OUT)
    log.status(3, Status.TIMED_OUT)
    log.status(3, Status.SUCCEEDED, late=True, answer=answer)
    verdict = log.verify()
    (one,) = verdict.accounts
    assert (one.finished, one.twice) == (4, 1)
    assert verdict.wrong == ["commands/0: 1 commands have two outcomes: offsets 0 (succeeded, timed_out)"]
    log = FakeLog(1, "", low=1)
    log.status(0, Status.FAILED)
    log.status(0, Status.SUCCEEDED, late=True, answer=answer)
    assert log.verify().exit_status is ExitStatus.MISSING_MESSAGES, "only timed_out may become another"
    log = FakeLog(1, "", low=1)
    log.status(0, Status.SUCCEEDED, late=True, answer=answer)
    assert log.verify().exit_status is ExitStatus.OK, "compaction leaves the last"


def test_statuses_of_a_topic_that_was_made_anew_are_told_apart() -> None:
    """Their offsets begin again, so an old record had the place of a new one."""
    log = FakeLog(300, "", low=300)
    for offset in range(300):
        log.status(offset, Status.FAILED, at_ms=offset)
    log.finish(*range(300))
    (one,) = log.verify().accounts
    assert one.twice == 61, "of the first minute: clocks may differ by so much"
    assert one.outcomes == {"failed": 61, "succeeded": 239}
    log = FakeLog(0, "", low=1)
    log.command(("correlation-id", b"new"))
    log.status(0, Status.FAILED, id="old")
    log.status(0, Status.SUCCEEDED, id="new")
    assert log.verify().accounts[0].outcomes == {"succeeded": 1}, "by its id also within the minute"


def test_statuses_under_an_earlier_name_count() -> None:
    log = FakeLog(1, "", low=1)
    log.status(0, Status.SUCCEEDED, route="relays")
    assert log.verify().exit_status is ExitStatus.OK


def test_what_deleted_statuses_said_is_not_judged() -> None:
    log = FakeLog(6, "", low=6)
    log.finish(0, 1, 2, 3, 5)
    log.first["status", 0] = 2
    verdict = log.verify()
    (one,) = verdict.accounts
    assert (one.status_deleted, one.missing, one.missing_at) == (2, 1, [4]), "those of 0 and 1; that of 4 never was"
    log.finish(4)
    verdict = log.verify()
    assert verdict.exit_status is ExitStatus.UNJUDGED
    assert verdict.unjudged == ["commands/0: the statuses of 2 commands are deleted, by their age"]
    log.first["status", 0] = 6
    assert log.verify().accounts[0].status_deleted == 6, "all of them"


def test_a_status_topic_that_was_made_anew_is_not_judged() -> None:
    log = FakeLog(3, None)
    log.commit = Committed(3, "1|70|")
    assert log.verify().exit_status is ExitStatus.UNJUDGED
    log.finish(2)
    assert log.verify().accounts[0].status_deleted == 2


def test_an_id_that_is_used_again_takes_the_place_of_the_earlier_statuses() -> None:
    log = FakeLog(0, "", low=3)
    log.command(("correlation-id", b"one"))
    log.command(("correlation-id", b"one"))
    log.command(("correlation-id", b"two"))
    log.status(1, Status.SUCCEEDED, id="one")  # compaction has left the last
    (one,) = log.verify().accounts
    assert (one.id_used_again, one.missing, one.missing_at) == (1, 1, [2])
    log.status(2, Status.SUCCEEDED, id="two")
    assert log.verify().exit_status is ExitStatus.UNJUDGED


def test_a_refused_copy_has_its_own_outcome() -> None:
    log = FakeLog(0, "", low=2)
    log.command(("correlation-id", b"one"))
    log.command(("correlation-id", b"one"))
    log.status(1, Status.REFUSED, id="one", reason="duplicate")
    assert log.verify().accounts[0].missing_at == [0], "the copy's status is not the first one's"
    log.status(0, Status.SUCCEEDED, id="one")
    assert log.verify().exit_status is ExitStatus.OK


def test_records_that_kafka_deleted_before_they_were_finished_are_not_judged() -> None:
    log = FakeLog(8, "T1F1A1", low=2)
    log.finish(0, 1)
    log.status(4, Status.SENT, terminal=False)
    log.first["commands", 0] = 6
    verdict = log.verify()
    (one,) = verdict.accounts
    assert (one.records, one.deleted_unread) == (2, 3), "2, 4 and 5"
    assert verdict.unjudged == ["commands/0: Kafka has deleted 3 offsets from 2 on whose commands were not finished"]
    log.finish(3)
    log.first["commands", 0] = 2
    assert log.verify().exit_status is ExitStatus.OK, "old and finished ones are deleted by their age"


def test_nothing_to_judge_is_said() -> None:
    verdict = FakeLog(0, None).verify()
    assert verdict.unjudged == ["the topics of commands 'switches' have no record in the span"]
    log = FakeLog(2, None)
    log.finish(0)
    verdict = log.verify()
    assert verdict.accounts[0].unread == 1
    assert "no commit of commands/0" in verdict.unjudged[0]
    assert FakeLog(2, None).verify().exit_status is ExitStatus.OK, "nobody has read them yet"


def test_a_span_is_that_of_the_records() -> None:
    log = FakeLog(2000, "", low=2000)
    log.finish(*range(1000, 2000))
    log.first["status", 0] = 5  # older statuses are deleted, which the span does not need
    verdict = log.verify(since_ms=1700 * SECOND_MS, until_ms=1799 * SECOND_MS)
    assert (verdict.accounts[0].records, verdict.exit_status) == (100, ExitStatus.OK)


def test_a_status_topic_with_too_few_partitions_is_said() -> None:
    log = FakeLog(1, "", low=1)
    del log.records["status", 0]
    verdict = log.verify()
    assert "the status topic has no partition status/0" in verdict.unjudged
    assert verdict.accounts[0].status_deleted == 1
