"""The verdict about commands as a table for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from config.errors import ExitStatus, sentence

if TYPE_CHECKING:
    from gateway.tools.verify.command_check import CommandAccount, CommandVerdict

_COLUMNS: Final = (
    "partition", "commands", "finished", "waiting", "sent", "unread", "missing", "twice", "unjudged",
)  # fmt: skip


def exit_status(verdicts: Sequence[CommandVerdict]) -> ExitStatus:
    found = {verdict.exit_status for verdict in verdicts}
    return next((one for one in (ExitStatus.MISSING_MESSAGES, ExitStatus.UNJUDGED) if one in found), ExitStatus.OK)


def as_text(verdicts: Sequence[CommandVerdict]) -> str:
    """For each ``[[commands]]`` a table, the outcomes, and the verdict."""
    return "\n".join("\n".join(_lines(verdict)) + "\n" for verdict in verdicts)


def _lines(verdict: CommandVerdict) -> Iterator[str]:
    yield f"Commands {verdict.name}: status topic {verdict.status_topic}, group {verdict.group}"
    yield ""
    yield from _table(verdict.accounts)
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


def _table(accounts: Sequence[CommandAccount]) -> Iterator[str]:
    numbers = [_row(one) for one in accounts]
    rows = [(f"{one.topic}/{one.partition}", *map(str, row)) for one, row in zip(accounts, numbers, strict=True)]
    if len(rows) > 1:
        rows.append(("all", *(str(sum(column)) for column in zip(*numbers, strict=True))))
    widths = [max(len(row[n]) for row in (_COLUMNS, *rows)) for n in range(len(_COLUMNS))]
    for row in (_COLUMNS, *rows):
        first, *others = (
            text.rjust(width) if n else text.ljust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *others])


def as_json(verdicts: Sequence[CommandVerdict]) -> str:
    """One JSON object; counts of commands, deleted_unread of offsets."""
    document = {
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
    return json.dumps(document, ensure_ascii=False) + "\n"
