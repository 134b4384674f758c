"""The verdict of ``gateway verify --commands`` as a table for people, and as data for programs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from config.errors import sentence
from gateway.cli.table import table
from gateway.tools.verify.command_check import CommandAccount, CommandVerdict, exit_status

_COLUMNS: Final = (
    "partition", "commands", "finished", "waiting", "sent", "unread", "missing", "twice", "unjudged",
)  # fmt: skip


def as_text(verdicts: Sequence[CommandVerdict]) -> str:
    """For each ``[[commands]]`` a table, the outcomes, and the verdict."""
    return "\n".join("\n".join(_lines(verdict)) + "\n" for verdict in verdicts)


def _lines(verdict: CommandVerdict) -> Iterator[str]:
    yield f"Commands {verdict.name}: status topic {verdict.status_topic}, group {verdict.group}"
    yield ""
    yield table(_COLUMNS, _rows(verdict.accounts)).rstrip("\n")
    outcomes: Counter[str] = Counter()
    for account in verdict.accounts:
        outcomes.update(account.outcomes)
    if outcomes:
        yield ""
        yield f"Outcomes: {', '.join(f'{status} {count}' for status, count in outcomes.most_common())}."
    yield ""
    yield from (f"WRONG: {sentence(text)}" for text in verdict.wrong)
    yield from (f"NOT JUDGED: {sentence(text)}" for text in verdict.unjudged)
    if not verdict.wrong and not verdict.unjudged:
        yield "Every command that is finished has one terminal status."


def _row(one: CommandAccount) -> tuple[int, ...]:
    return (
        one.records, one.finished, one.waiting, one.under_way, one.unread, one.missing, one.twice,
        one.unjudged + one.deleted_unread,
    )  # fmt: skip


def _rows(accounts: Sequence[CommandAccount]) -> Iterator[tuple[object, ...]]:
    numbers = [_row(one) for one in accounts]
    yield from ((f"{one.topic}/{one.partition}", *row) for one, row in zip(accounts, numbers, strict=True))
    if len(accounts) > 1:
        yield ("all", *(sum(column) for column in zip(*numbers, strict=True)))


def as_document(verdicts: Sequence[CommandVerdict]) -> dict[str, object]:
    """For JSON; counts of commands, deleted_unread of offsets."""
    return {
        "status": int(exit_status(verdicts)),
        "commands": [
            {
                "name": verdict.name,
                "group": verdict.group,
                "status_topic": verdict.status_topic,
                "status": int(verdict.exit_status),
                "wrong": verdict.wrong,
                "unjudged": verdict.unjudged,
                "partitions": [
                    {**asdict(one), "finished": one.finished, "outcomes": dict(one.outcomes)}
                    for one in verdict.accounts
                ],
            }
            for verdict in verdicts
        ],
    }
