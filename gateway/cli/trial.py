"""``gateway trial``: sends marked messages through your own brokers, and accounts for each."""

import argparse
import asyncio
import dataclasses
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from config.errors import GatewayError, sentence
from config.loading.load import load
from config.settings import Settings
from gateway.cli.arguments import UsageError, add_number, between, login, run_quietly, topic_prefix, utf8
from gateway.cli.parser import Commands
from gateway.cli.table import counted, mention, print_json, progress, tell
from gateway.tools.trial.account import CommandResult, Percentiles, TrialResult
from gateway.tools.trial.cleanup import Cleanup, Leftover
from gateway.tools.trial.plan import TrialPlan
from gateway.tools.trial.run import Trial

_MOST_BYTES = 4 << 30
_EPILOG = """\
examples:
  gateway trial --mqtt mqtt://emqx.example.com:1883 --kafka kafka-1.example.com:9092
  gateway trial --config gateway.toml -n 100000 --size 500
  gateway trial --config gateway.toml --topic scratch        without the right to create topics; its records stay

--config gives credentials, TLS and limits; --mqtt and --kafka replace its addresses.

exit status: 0 all arrived, 3 messages or commands are missing, 5 not everything was sent, acknowledged or removed, 69 a
broker is not there, 77 a broker refuses the login or rights, 78 bad settings
"""


def add_parser(commands: Commands) -> None:
    parser = commands.verb("trial", _run, epilog=_EPILOG, config="credentials, TLS and limits")
    parser.add_argument("--mqtt", metavar="URL", help="mqtt://HOST:PORT, mqtts, ws, wss (default: mqtt.addresses)")
    parser.add_argument("--kafka", metavar="HOST:PORT[,…]", help="(default: kafka.bootstrap_servers)")
    add_number(parser, "-n", "--messages", within=(1, 5_000_000), default=10_000)
    add_number(parser, "--size", within=(32, 1_000_000), default=200, metavar="BYTES", what="of each payload")
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=1, help="(default: 1)")
    parser.add_argument(
        "--rate",
        type=between(0.1, 100_000.0),
        metavar="R",
        help="messages a second (default: as fast as they come back)",
    )
    ahead = "most messages under way; EMQX drops those beyond 1,000 in a session's queue"
    add_number(parser, "--ahead", within=(1, 100_000), default=500, what=ahead)
    add_number(parser, "--commands", within=(0, 100_000), default=200, what="of each [[commands]] of the settings")
    longest = "longest time for the messages, and for the commands of an entry"
    add_number(parser, "--timeout", within=(1.0, 3600.0), default=300.0, metavar="S", what=longest)
    kafka = parser.add_argument_group("Kafka topic")
    kafka.add_argument(
        "--topic", type=utf8, metavar="T", help="an existing one; the records stay in it until they expire"
    )
    add_number(kafka, "--partitions", within=(1, 100), default=3, what="of the temporary one")
    mqtt = parser.add_argument_group("MQTT")
    mqtt.add_argument(
        "--prefix",
        type=utf8,
        default="gateway-trial",
        metavar="T",
        help="begin of the topics (default: gateway-trial)",
    )
    mqtt.add_argument(
        "--publisher-username", type=utf8, metavar="USER", help="a publisher other than the gateway's user"
    )
    mqtt.add_argument("--publisher-password-file", type=Path, metavar="FILE")


def _run(arguments: argparse.Namespace) -> int:
    """Sends N marked messages to your MQTT broker, which the real gateway brings to your Kafka. It reads them back with
    a consumer of its own and accounts for each: missing, duplicates, order, rate, latency, bytes, CPU. Then it tries
    each [[commands]] of the settings: it writes commands to Kafka for devices of its own, which answer where the entry
    has answers, and accounts for each by the status topic and the devices.

    It has its own client ids, shared subscription group, consumer groups, MQTT topics below gateway-trial/, Kafka
    topics and temporary folder. It removes all of them at the end, also after Ctrl-C and after a failure. Anything left
    is named, with the command to remove it. It retains nothing, and touches no other topic, group or device. At most
    500 messages are under way (--ahead).
    """
    overrides: dict[str, Any] = {}
    if arguments.mqtt is not None:
        overrides["mqtt.addresses"] = [arguments.mqtt]
    if arguments.kafka is not None:
        overrides["kafka.bootstrap_servers"] = [one.strip() for one in arguments.kafka.split(",")]
    loaded = load(arguments.config, overrides=overrides)
    if loaded.file is None and len(overrides) < 2:
        raise UsageError("Say through which brokers: --mqtt URL and --kafka HOST:PORT, or --config FILE.")
    plan = TrialPlan(
        run=secrets.token_hex(4),
        messages=arguments.messages,
        size=arguments.size,
        qos=arguments.qos,
        rate=arguments.rate,
        ahead=arguments.ahead,
        partitions=arguments.partitions,
        topic=arguments.topic,
        prefix=topic_prefix(arguments.prefix),
        timeout_s=arguments.timeout,
        commands_each=arguments.commands,
        entries=loaded.settings.commands if arguments.commands and arguments.topic is None else (),
        publisher=login(
            arguments.publisher_username,
            arguments.publisher_password_file,
            "--publisher-username and --publisher-password-file",
        ),
    )
    _check_size(plan, loaded.settings)
    return run_quietly(_trial(plan, loaded.settings, json=arguments.json), loaded.settings.log)


def _check_size(plan: TrialPlan, settings: Settings) -> None:
    if plan.messages * plan.size > _MOST_BYTES:
        raise UsageError(
            f"{plan.messages:,} messages of {plan.size:,} bytes are {plan.messages * plan.size / (1 << 30):.1f} GiB; a "
            f"trial sends {_MOST_BYTES >> 30} GiB at most."
        )
    if plan.size > settings.kafka.max_record_bytes:
        raise UsageError(
            f"--size {plan.size} is above kafka.max_record_bytes ({settings.kafka.max_record_bytes}): such messages "
            "would be dead-lettered."
        )
    if plan.size + 200 > settings.mqtt.max_packet_bytes:
        raise UsageError(
            f"--size {plan.size} does not fit mqtt.max_packet_bytes ({settings.mqtt.max_packet_bytes}): the broker "
            "would drop such messages."
        )


async def _trial(plan: TrialPlan, base: Settings, *, json: bool) -> int:
    """Run the trial, clean up, and report. The first signal ends the trial in order, the second its clean-up."""
    cleanup = Cleanup()
    work = asyncio.create_task(Trial(plan, base, cleanup, progress).run())
    cleaning: asyncio.Task[None] | None = None
    caught: list[int] = []

    def on_signal(number: int) -> None:
        caught.append(number)
        progress("interrupted: cleaning up; once more to leave it")
        if cleaning is None:
            work.cancel()
        elif len(caught) > 1:
            loop.call_soon(cleaning.cancel)  # not before it has begun: it would name nothing of what is left

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    await asyncio.wait({work})
    cleaning = asyncio.create_task(cleanup.run())
    if len(caught) > 1:
        loop.call_soon(cleaning.cancel)
    await asyncio.wait({cleaning})
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
    progress("")
    return _report(plan, work, cleanup, caught, json=json)


def _report(
    plan: TrialPlan, work: asyncio.Task[TrialResult], cleanup: Cleanup, caught: list[int], *, json: bool
) -> int:
    """Report the ended trial, and return its exit status; after signals (``caught``) end the process by the first."""
    if work.cancelled() or caught:
        _tell_left(cleanup.left)
        mention(f"the trial was interrupted; {_left_text(plan, cleanup.left)}")
        # The process ends by the signal, so that a shell sees it.
        signal.signal(caught[0], signal.SIG_DFL)
        signal.raise_signal(signal.Signals(caught[0]))
    error = work.exception()
    if error is not None:
        _tell_left(cleanup.left)
        if isinstance(error, GatewayError):
            mention(str(error))
            mention(f"the trial failed; {_left_text(plan, cleanup.left)}")
            return int(error.exit_status)
        raise error
    result = dataclasses.replace(work.result(), left_behind=list(cleanup.left))
    if json:
        print_json({**dataclasses.asdict(result), "cpu_seconds_per_million": result.cpu_seconds_per_million})
    else:
        tell(_text(result))
    _tell_left(cleanup.left)
    return result.exit_status


def _left_text(plan: TrialPlan, left: list[Leftover]) -> str:
    if left:
        return "see above for the rest"
    return "nothing is left behind" + (f", except the records in topic {plan.topic}" if plan.topic else "")


def _tell_left(left: list[Leftover]) -> None:
    for one in left:
        mention(f"LEFT BEHIND: {one.what}: {sentence(one.why)} To remove it: {one.command}")


def _text(result: TrialResult) -> str:
    lines = [
        f"Trial {result.run}: {result.wanted:,} messages of {result.size} bytes, QoS {result.qos}",
        *counted(
            [
                ("published", result.sent, f"{result.reconnects} reconnects" if result.reconnects else ""),
                *([("acknowledged by the MQTT broker", result.acknowledged, "")] if result.qos else []),
                ("read back from Kafka", result.delivered, ""),
                ("missing", result.missing, _examples(result)),
                ("duplicates", result.duplicates, "allowed: delivery is at least once" if result.duplicates else ""),
                ("out of order", result.out_of_order, _order(result)),
                ("", "", ""),
                ("rate", f"{result.messages_per_second:,.0f}/s", f"{result.seconds:.2f} s in all"),
                *_percentiles(
                    [
                        ("publish → MQTT acknowledgement", result.mqtt_acknowledged),
                        ("publish → Kafka acknowledgement", result.kafka_acknowledged),
                        ("publish → read back", result.read_back),
                    ]
                ),
                ("bytes to the MQTT broker", result.published_bytes, _each(result.published_bytes, result.sent)),
                ("bytes of the records", result.record_bytes, _each(result.record_bytes, result.delivered)),
                ("bytes to Kafka", result.batch_bytes, f"{_each(result.batch_bytes, result.delivered)}, compressed"),
                *_cpu(result),
            ]
        ),
    ]
    if result.stalled:
        lines.append(f"  Trouble: {result.stalled}")
    lines += [f"  {note}" for note in (*result.notes, result.untried) if note]
    for one in result.commands:
        lines += _commands(one)
    return "\n".join([*lines, *_verdicts(result)])


def _verdicts(result: TrialResult) -> list[str]:
    """A line for each problem that the trial found, or one that says there is none."""
    lines = []
    if result.missing:
        lines.append(
            f"MISSING: {result.missing:,} messages did not arrive. If the broker is EMQX, check its drops: a full "
            "queue of 1,000 messages a session (mqtt.max_mqueue_len) is the usual cause; try a smaller --ahead."
        )
    elif result.delivered < result.sent:
        lines.append(
            f"{result.sent - result.delivered:,} messages did not arrive; nor has the MQTT broker acknowledged them."
        )
    elif result.sent < result.wanted:
        lines.append(f"Only {result.sent:,} of {result.wanted:,} were sent; none of these is missing.")
    for one in result.commands:
        account = one.account
        if account.contradicting:
            lines.append(f"CONTRADICTING: {account.contradicting:,} commands of {one.name!r} have two last statuses.")
        if one.missing:
            lines.append(
                f"MISSING: {one.missing:,} commands of {one.name!r} did not reach a device, or did not end as "
                f"{one.expected}."
            )
        elif account.written < one.wanted:
            lines.append(
                f"Only {account.written:,} of {one.wanted:,} commands of {one.name!r} were written; none of "
                "these is missing."
            )
    if not lines:
        every = "Every message and every command" if result.commands else "Every message"
        clean = not result.left_behind and not result.notes
        lines.append(f"Missing: 0. {every} arrived" + (", and nothing is left behind." if clean else "."))
    return lines


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def _commands(one: CommandResult) -> list[str]:
    account = one.account
    answers = f"{account.answers:,} answers" if one.expected == "succeeded" else "no answers asked"
    lines = [
        f"Commands {one.name!r}: {one.wanted:,}, QoS {one.qos}",
        *counted(
            [
                ("written to Kafka", account.written, ""),
                ("finished", sum(account.finished.values()), _listed(account.finished)),
                ("received by the devices", account.received, answers),
                ("missing", one.missing, _listed(one.faults)),
                ("copies", account.copies, "allowed: delivery is at least once" if account.copies else ""),
                ("", "", ""),
                *_percentiles(
                    [
                        ("write → device", one.to_device),
                        ("write → status sent", one.to_sent),
                        ("write → status succeeded", one.to_succeeded),
                    ]
                ),
            ]
        ),
    ]
    if one.stalled:
        lines.append(f"  Trouble: {one.stalled}")
    return [*lines, *(f"  Not judged: {text}." for text in one.not_judged)]


def _percentiles(parts: list[tuple[str, Percentiles | None]]) -> list[tuple[str, int | str, str]]:
    return [
        (label, _ms(one.p50), f"p50; p99 {_ms(one.p99)}, highest {_ms(one.highest)}")
        for label, one in parts
        if one is not None
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _each(size: int, count: int) -> str:
    return f"{size / count:,.0f} each" if count else ""


def _cpu(result: TrialResult) -> list[tuple[str, int | str, str]]:
    if result.cpu_seconds is None or result.cpu_seconds_per_million is None:
        return []
    note = f"{result.cpu_seconds_per_million:,.1f} s per million messages"
    if result.delivered < 50_000:
        note += "; for a reliable figure use -n 100000"
    return [("CPU of the gateway", f"{result.cpu_seconds:.2f} s", note)]


def _examples(result: TrialResult) -> str:
    if not result.missing_examples:
        return ""
    return "numbers " + ", ".join(map(str, result.missing_examples)) + (" …" if result.missing > 5 else "")


def _order(result: TrialResult) -> str:
    if not result.out_of_order:
        return ""
    return "behind a later one of their device: the broker gives messages to several sessions in turn"
