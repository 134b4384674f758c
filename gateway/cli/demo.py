"""``gateway demo``: the whole path on this machine, with an account of every message at the end."""

from __future__ import annotations

__all__ = ["add_parser"]

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.errors import ConfigError
from config.extras import require
from gateway.cli.table import tell

if TYPE_CHECKING:
    from gateway.local.demo.options import DemoOptions
    from gateway.local.demo.result import DemoResult

_DESCRIPTION = """\
Starts a real Kafka broker and a real MQTT broker on free ports of this machine, the gateway between them, simulated
devices that publish telemetry, and a Spark job that writes it to Parquet. Ends with an account of every message.

Needs nothing but Python: brokers and, if there is none, Java are downloaded once. Nothing is left running.
"""
_EPILOG = """\
The account counts by the devices' own names and sequence numbers, read back from Kafka and from Parquet. The exit
status is 0 only if no acknowledged message is missing anywhere, 3 if one is, 5 if Spark was too slow for some to be in
Parquet yet. A part that stands still is named while it does; that, and messages that came late, stand beside the
account, with the place where the logs are kept then.

With --json standard output is one JSON object: published, acknowledged, received, kafka, parquet (not with
--no-spark), duplicates, missing, pending (not yet in Parquet), seconds, latency_p50_ms, latency_p99_ms, late,
standstills. kafka and parquet count records; duplicates
and missing are those of the stage that has most. Latency is from a device's measurement to a Kafka consumer.

With --chaos the gateway is killed (kill -9) after a third of the time, Kafka is frozen (SIGSTOP) from half on, and the
gateway is killed again while it is. Beside it, under the same faults, a plain bridge (paho's callback to aiokafka's
send) gets the same messages; what it loses is told beside the account, which is the gateway's, as is the exit status.
With --json there is then also chaos: faults, spool (its size over time, as [seconds, messages, bytes]), plain_bridge.

With --auth the MQTT broker asks a real `gateway auth serve` who may connect, publish and subscribe: every device logs
in with a secret of its own and may use its own topics alone, the gateway is a user with its own rules. With --json
there is then also access: logins and topics, allowed and denied. Not together with --chaos.

Ctrl-C ends in order, with the account; a second one ends at once.
"""
_STAGES = {"kafka": "Kafka", "parquet": "Parquet"}
_NEEDED = {"rich": "rich", "jpype": "JPype1"}
_NEEDED_WITH_AUTH = {"argon2": "argon2-cffi"}
_NEEDED_WITH_SPARK = {"pyspark": "pyspark", "pyarrow": "pyarrow"}


def add_parser(subparsers: Any) -> None:
    """Adds the command to the main parser's ``subparsers``."""
    parser = subparsers.add_parser(
        "demo",
        help="run the whole path on this machine and account for every message",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--duration", type=_seconds, default=60.0, metavar="S", help="how long messages flow (default 60)"
    )
    parser.add_argument("--devices", type=_devices, default=200, metavar="N", help="simulated devices (default 200)")
    parser.add_argument(
        "--rate", type=_rate, default=1.0, metavar="R", help="messages per second of each device (default 1)"
    )
    parser.add_argument("--seed", type=int, default=1, help="what the devices measure depends on it (default 1)")
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="without the Spark job")
    parser.add_argument(
        "--chaos", action="store_true", help="kill the gateway and freeze Kafka meanwhile, beside a plain bridge"
    )
    parser.add_argument(
        "--auth", action="store_true", help="let the MQTT broker ask the access service; a secret for every device"
    )
    parser.add_argument("--json", action="store_true", help="print the account as one JSON object")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave data and logs in DIR instead of removing them")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import asyncio
    import json
    import signal

    _require_extra(spark=arguments.spark, auth=arguments.auth)
    from gateway.local.demo.account import render
    from gateway.local.demo.chaos import MIN_DURATION_S, render_chaos
    from gateway.local.demo.options import DemoOptions

    if arguments.chaos and arguments.duration < MIN_DURATION_S:
        raise ConfigError(
            f"--chaos with --duration {arguments.duration:g}: the gateway could not come back between its faults."
            f" Give {MIN_DURATION_S:g} s or more."
        )

    if arguments.chaos and arguments.auth:
        raise ConfigError("--chaos and --auth: the plain bridge to compare with knows no password. Give one of them.")

    options = DemoOptions(
        devices=arguments.devices,
        rate=arguments.rate,
        duration_s=arguments.duration,
        seed=arguments.seed,
        spark=arguments.spark,
        json=arguments.json,
        chaos=arguments.chaos,
        auth=arguments.auth,
        keep=arguments.keep,
    )
    try:
        result = asyncio.run(_show(options))
    except (asyncio.CancelledError, KeyboardInterrupt):
        tell("Ended at once, without an account. Nothing is left running.", to=sys.stderr)
        return 128 + signal.SIGINT
    told = render(result.account, _STAGES)
    told += "".join(f"\n{finding}" for finding in result.findings())
    if result.access is not None:
        told += f"\n{result.access.sentence()}"
    if result.chaos is not None:
        told += f"\n\n{render_chaos(result.chaos)}\n"
    told += f"\n{_report_sentence(result, options)}"
    if options.json:
        print(json.dumps(result.as_json()))
        print(told, file=sys.stderr)
    else:
        tell(f"\n{told}")
        if result.latency_p50_ms is not None:
            tell(f"Device to Kafka consumer: p50 {result.latency_p50_ms} ms, p99 {result.latency_p99_ms} ms.")
    if result.account.missing and options.keep is None:
        tell("Run it again with --keep DIR to have every part's data as well.", to=sys.stderr)
    if options.keep is not None:
        _say_what_is_kept(options)
    return int(result.account.exit_status)


def _report_sentence(result: DemoResult, options: DemoOptions) -> str:
    if result.report is not None:
        return f"Report, with plots: {result.report}"
    return "Report: none could be made." if options.spark else "Report: none without Spark, whose tables it shows."


async def _show(options: DemoOptions) -> DemoResult:
    from gateway.local.demo.chaos import ChaosPlan, ChaosState
    from gateway.local.demo.state import DemoState
    from gateway.local.demo.view import LiveView, PlainView

    state = DemoState(
        devices=options.devices,
        with_spark=options.spark,
        duration_s=options.duration_s,
        chaos=ChaosState(ChaosPlan.for_duration(options.duration_s)) if options.chaos else None,
    )
    redrawable = os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    on_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    view = LiveView(state) if on_terminal and redrawable and not options.json else PlainView(state)
    view.start()
    try:
        from gateway.local.demo.run import run_demo  # half a second of imports, with something to look at meanwhile

        return await run_demo(options, state, view)
    finally:
        view.stop()


def _say_what_is_kept(options: DemoOptions) -> None:
    assert options.keep is not None
    root = options.keep.resolve()
    print(f"Kept in {root}:", file=sys.stderr)
    if options.spark:
        print("  telemetry/     the Parquet files Spark wrote; windows/ its aggregates", file=sys.stderr)
        print("  demo-report.html  devices, signals, late and lost data, with plots", file=sys.stderr)
    print("  kafka/         Kafka's data and log", file=sys.stderr)
    if options.auth:
        print("  auth/          users, rules and secrets; gateway auth … --config auth/auth.toml", file=sys.stderr)
    print("  gateway.toml   the gateway's settings, and *.log of every part", file=sys.stderr)


def _require_extra(*, spark: bool, auth: bool) -> None:
    needed = {**_NEEDED, **(_NEEDED_WITH_SPARK if spark else {}), **(_NEEDED_WITH_AUTH if auth else {})}
    require("The demo", needed, "embedded,auth" if auth else "embedded")


def _seconds(text: str) -> float:
    return _number(text, 1.0, 86_400.0, "a number of seconds from 1 to 86400")


def _rate(text: str) -> float:
    return _number(text, 0.01, 100.0, "a number from 0.01 to 100")


def _devices(text: str) -> int:
    value = _number(text, 1, 10_000, "a whole number from 1 to 10000")
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 10000")
    return int(value)


def _number(text: str, lowest: float, highest: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not lowest <= value <= highest:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
