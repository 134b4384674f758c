"""An explanation as text: one section for each station of the way."""

from collections.abc import Iterable, Iterator

from bridge import wire
from bridge.commands.model import StatusRecord
from bridge.commands.ports import Outgoing
from config.numbers import many
from config.settings import Settings
from config.tables.commands import CommandSettings
from gateway.base.moments import moment, moment_ms
from gateway.tools.explain import Delivery, Explanation, RouteView, Step, Written, shown
from gateway.tools.explain_command import CommandExplanation


def text(told: Explanation, settings: Settings) -> str:
    """The whole explanation, with a line end after the last line."""
    lines: list[str] = []
    _section(lines, "at EMQX", told.before)
    _section(lines, "subscriptions", map(_delivery, told.deliveries))
    _section(lines, "routes", _routes(told))
    facts = {"device": told.device, "message id": told.message_id}
    _section(lines, "known of it", (f"{name}: {shown(value)}" for name, value in facts.items() if value is not None))
    _section(lines, "interceptors", _steps(told.steps))
    for number, one in enumerate(told.written, 1):
        count = f" {number} of {len(told.written)}" if len(told.written) > 1 else ""
        _section(lines, f"dead letter{count}" if one.dead_letter else f"record{count}", _record(one, told, settings))
    _section(lines, "end", _end(told))
    _section(lines, "note", told.notes)
    return "\n".join(lines) + "\n"


def command_text(told: CommandExplanation, commands: CommandSettings) -> str:
    """The way of a command, with a line end after the last line."""
    lines: list[str] = []
    record = told.record
    count = f"of {told.partitions}" if told.partitions is not None else "unknown, as the number of partitions is"
    where = f"{record.place.partition} {count}" if told.partitions is not None else count
    order = "its device, so a device's commands are in order" if told.is_ordered else "not its device: NO ORDER is kept"
    _section(
        lines,
        f"record of commands {told.commands}",
        [
            f"topic: {record.place.topic}",
            f"key: {shown(record.key)}: {order}",
            f"partition: {where}",
            f"value: {len(record.value or b'')} bytes{f', {shown(record.value)}' if record.value else ''}",
            *(f"header {name} = {shown(value)}" for name, value in record.headers),
        ],
    )
    if told.dead_letter is not None:
        reason, error = told.dead_letter
        _section(lines, "dead letter", [f"why: {reason}: {shown(error, 1000)}", "its status: refused"])
    if told.sent is not None:
        _section(lines, "message to the device", _sent(told.sent))
        _section(lines, "expiry", _expiry(told))
        _section(lines, "awaited", told.awaited)
        how = commands.when_offline
        nobody = " → ".join(map(_status, told.after_nobody))
        _section(
            lines,
            "statuses",
            [
                f"the broker takes it: {' → '.join(map(_status, told.after_sent))}",
                f"nobody subscribes: {nobody}, by when_offline {how!r}",
            ],
        )
    _section(lines, "note", told.notes)
    return "\n".join(lines) + "\n"


def _sent(sent: Outgoing) -> Iterator[str]:
    yield f"topic: {shown(sent.topic, 1000)}"
    yield f"QoS {sent.qos}, not retained"
    yield f"expiry: {sent.expiry_s} s, if it is sent at once"
    if sent.content_type is not None:
        yield f"content type: {shown(sent.content_type)}"
    if sent.response_topic is not None:
        yield f"response topic: {shown(sent.response_topic)}"
    yield f"correlation data: {shown(sent.correlation_data)}, the signed text that the device sends back"
    for name, value in sent.user:
        yield f"user property {shown(name)} = {shown(value)}"


def _expiry(told: CommandExplanation) -> Iterator[str]:
    assert told.deadline_ms is not None
    left_s = (told.deadline_ms - told.record.timestamp_ms) / 1000
    yield f"not sent from {moment(told.deadline_ms / 1000)} on, {left_s:g} s after the record"


def _status(status: StatusRecord) -> str:
    return f"{status.status}{' (the end)' if status.terminal else ''}"


def _section(lines: list[str], title: str, items: Iterable[str]) -> None:
    found = list(items)
    if not found:
        return
    lines.append(f"{title}:")
    lines += [f"  {item}" for item in found]


def _delivery(delivery: Delivery) -> str:
    who = f"{'one of ' if delivery.one_of and len(delivery.sessions) > 1 else ''}{', '.join(delivery.sessions)}"
    line = f"{delivery.filter}, QoS {delivery.qos} → {who}"
    if delivery.group:
        line += f" (group {delivery.group})"
    return line if delivery.taken else f"{line}: a copy, which is dropped there (other_group)"


def _routes(told: Explanation) -> Iterator[str]:
    for view in told.routes:
        if view.matched is not None:
            yield f"✓ {view.name}: {view.matched!r} matches"
        else:
            yield from _refused(view)
    if told.route is None:
        yield "no route takes it"


def _refused(view: RouteView) -> Iterator[str]:
    for number, (filter_, why) in enumerate(view.why.items()):
        name = f"✗ {view.name}:" if not number else " " * (len(view.name) + 3)
        yield f"{name} {filter_!r} does not match: {why}"


def _steps(steps: list[Step]) -> Iterator[str]:
    for number, step in enumerate(steps, 1):
        words = {"pass": "passes it on as it is", "change": "changes it", "split": f"splits it {step.detail}",
                 "drop": f"drops it ({step.detail})", "error": f"fails: {step.detail}"}  # fmt: skip
        yield f"{number}. {step.interceptor} {words[step.outcome]}"
        for name, before, after in step.changes:
            yield f"     {name}: {before} → {after}"


def _record(one: Written, told: Explanation, settings: Settings) -> Iterator[str]:
    if one.dead_letter:
        said = dict(one.headers)
        reason, error = said.get(wire.DLQ_REASON), said.get(wire.DLQ_ERROR)
        yield f"why: {shown(reason)}: {shown(error, 1000)}"
    yield f"topic: {one.topic}"
    if one.key is None and not one.dead_letter:
        yield "key: none: any partition, a whole batch at a time"
    else:
        yield f"key: {shown(one.key)}"
        where = "unknown, as the number of partitions is" if one.partitions is None else f"of {one.partitions}"
        yield f"partition: {where}" if one.partition is None else f"partition: {one.partition} {where}"
    value = "null (a tombstone)" if one.value is None else f"{len(one.value)} bytes"
    yield f"value: {value}{f', {shown(one.value)}' if one.value else ''}"
    when = "the time of receipt" if one.timestamp_ms == told.received_ms else moment_ms(one.timestamp_ms)
    headers = f"; {many(len(one.headers), 'header')}" if one.headers else ""
    yield f"timestamp: {when}{headers}"
    for name, content in one.headers:
        yield f"  {name} = {shown(content)}"
    yield f"compressed with {settings.kafka.compression}, acknowledged to EMQX when Kafka has it (acks=all)"


def _end(told: Explanation) -> Iterator[str]:
    if told.stopped is not None:
        yield f"the worker ends: {told.stopped}"
    elif told.filtered is not None and told.route is not None:
        yield f"nothing is written: it is acknowledged and counted as filtered ({told.filtered})"
    elif any(one.dead_letter for one in told.written):
        yield "it is acknowledged once Kafka has the dead letter; `gateway dlq list` shows it"
