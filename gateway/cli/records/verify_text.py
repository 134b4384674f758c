"""The verdict of ``gateway verify`` as a table for people, and as data for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from config.errors import sentence
from config.numbers import some
from gateway.base.moments import moment
from gateway.cli.table import table
from gateway.tools.verify.before import Before, as_sentence
from gateway.tools.verify.check import Verdict
from gateway.tools.verify.lives import Life
from gateway.tools.verify.place import PlaceResult

_COLUMNS = ("route", "topic", "partition", "acknowledged", "in Kafka", "missing", "surplus", "open", "gone", "state")
_WORDS = {
    "expired": "expired by retention",
    "compacted": "compacted",
    "open": "ok; open interval",
    "surplus": "ok; copies",
    "unjudged": "not judged",
}
_RANGES = 5


def as_text(verdict: Verdict, before: Before | None = None) -> str:
    """The table, a line for each life of a worker, notes, losses ``before`` the gateway, and the verdict."""
    lines = [f"Gateway {verdict.gateway}, {_time(verdict.from_ms)} to {_time(verdict.to_ms)}", ""]
    if verdict.places:
        lines.append(table(_COLUMNS, _rows(verdict.places)))
    lines += [_life(life, verdict.now_ms) for life in verdict.lives]
    if notes := list(_notes(verdict.places)):
        lines += ["", *notes]
    lines.append("")
    lines += [f"MISSING: {sentence(text)}" for text in verdict.missing]
    lines += [f"NOT JUDGED: {sentence(text)}" for text in verdict.unjudged]
    if not verdict.missing and not verdict.unjudged:
        lines.append("Everything that the ledger has as acknowledged is in Kafka, as far as Kafka keeps it.")
    if before is not None:
        lines.append(as_sentence(before, lost=len(verdict.losses)))
    return "\n".join(lines) + "\n"


def as_document(verdict: Verdict, before: Before | None = None) -> dict[str, object]:
    """For JSON; times in ms since 1970, counts of records."""
    return {
        "gateway": verdict.gateway,
        "from_ms": verdict.from_ms,
        "to_ms": verdict.to_ms,
        "status": int(verdict.exit_status),
        "missing": verdict.missing,
        "unjudged": verdict.unjudged,
        "partitions": [{**asdict(place), "state": place.state} for place in verdict.places],
        "workers": [
            {
                "worker": life.worker,
                "life": life.name,
                "started_ms": life.started_ms,
                "last_ms": life.last.to_ms if life.last is not None else None,
                "ending": life.ending(verdict.now_ms),
                "terms": life.last.terms if life.last is not None else None,
                "imbalance": life.worst_imbalance,
            }
            for life in verdict.lives
        ],
        "lost_sessions": [
            {
                "worker": loss.worker,
                "session": loss.session,
                "client_id": loss.client_id,
                "left_ms": loss.from_ms if loss.away_known else None,
                "at_ms": loss.to_ms,
            }
            for loss in verdict.losses
        ],
        "before": before.as_dict() if before is not None else None,
    }


def _rows(places: Sequence[PlaceResult]) -> Iterator[tuple[object, ...]]:
    yield from map(_row, places)
    if len(places) > 1:
        yield _total_row(places)


def _row(place: PlaceResult) -> tuple[object, ...]:
    route = "+".join(sorted(place.routes)) + (" (dead letters)" if place.dead_letter else "")
    surplus, opened = (place.surplus, place.open) if place.tagged else ("?", "?")  # else ours are not recognised
    state = "MISSING" if place.state == "missing" else _WORDS.get(place.state, place.state)
    return (
        route, place.topic, place.partition, place.acknowledged, place.found, place.missing, surplus, opened,
        place.expired + place.compacted, state,
    )  # fmt: skip


def _total_row(places: Sequence[PlaceResult]) -> tuple[object, ...]:
    def total(*names: str) -> int:
        return sum(getattr(place, name) for place in places for name in names)

    surplus, opened = (total("surplus"), total("open")) if all(place.tagged for place in places) else ("?", "?")
    return (
        "all", "", None, total("acknowledged"), total("found"), total("missing"), surplus, opened,
        total("expired", "compacted"), "",
    )  # fmt: skip


def _life(life: Life, now_ms: int) -> str:
    text = f"Worker {life.worker}, life {life.name}, from {_time(life.started_ms)}: "
    last = life.last
    terms = last.terms if last is not None else {}
    account = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in terms.items() if count)
    imbalance = f", IMBALANCE {life.worst_imbalance}" if life.worst_imbalance else ""
    until = _time(last.to_ms if last is not None else life.started_ms)
    match life.ending(now_ms):
        case "stopped":
            ending = f"stopped {until}"
        case "crashed":
            ending = f"ended without its last record; what it acknowledged after {until} is unaccounted for, not lost"
        case "silent":
            ending = f"no word since {until}"
        case "running":
            ending = f"running; counted until {until}"
    return f"{text}{account or 'no messages'}{imbalance}; {ending}."


def _notes(places: Sequence[PlaceResult]) -> Iterator[str]:
    said: dict[str, list[str]] = {}
    for place in places:
        where = f"{place.topic}/{place.partition}"
        for note in place.notes:
            said.setdefault(note, []).append(where)
        if place.missing and place.absent:
            ranges = [f"{first}" if end == first + 1 else f"{first}-{end - 1}" for first, end in place.absent[:_RANGES]]
            more = " and more" if len(place.absent) > _RANGES else ""
            yield f"{where}: no record at offsets {', '.join(ranges)}{more}."
    for note, where_all in said.items():
        yield f"{some(where_all, _RANGES)}: {note}."


def _time(at_ms: int | None) -> str:
    return "?" if at_ms is None else moment(at_ms / 1000)
