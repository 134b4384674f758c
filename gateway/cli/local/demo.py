"""``gateway demo``: the whole path on this machine, with an account of every message."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from config.errors import ConfigError, ExitStatus
from config.extras import require
from gateway.cli.arguments import add_number
from gateway.cli.parser import Commands, flag
from gateway.cli.table import tell

if TYPE_CHECKING:
    import argparse

    from gateway.local.demo.options import DemoOptions
    from gateway.local.demo.result import DemoResult

_EPILOG = """\
The account counts by the devices' own names and sequence numbers, read back from Kafka and from silver. The exit
status is 0 if no acknowledged message is missing, 3 if one is, 5 if some are not in silver yet because Spark was too
slow. A part that stops is named at once. Such stops and late messages are reported beside the account, with the place
of the logs.

With --json standard output is one JSON object: published, acknowledged, received, kafka, silver (not with
--no-spark), duplicates, missing, pending (not yet in silver), seconds, latency_p50_ms, latency_p99_ms, late,
standstills. kafka and silver count records. duplicates and missing are those of the stage with the most. Latency is
from a device's measurement to a Kafka consumer.

With --chaos the gateway is killed (kill -9) after a third of the time. Kafka is frozen (SIGSTOP) after half of it,
once Spark runs, and the gateway is killed again meanwhile. A plain bridge (paho's callback to aiokafka's send) gets
the same messages under the same faults; its losses are reported beside the gateway's account. The exit status is the
gateway's. With --json there is also chaos: faults, spool (its size over time, as [seconds, messages, bytes]),
plain_bridge.

Meanwhile commands go the other way, five a second through Kafka: a device is told to measure half as often, does it,
answers, and is told to stop that a little later. They are accounted for as the messages are. With --chaos fifty are
sent just before the first kill. With --json there is also commands: consumed = finished (by outcome) + waiting +
under_way.

With Spark the first device measures its voltage half too high after 25 readings. The job anomalies writes an
alert to Kafka, the demo makes a command of it, the device recalibrates and answers. With --json there is also loop:
faulty (the device), alerts with the moments of each step. If the alert has not come before the end, the account says
so; the exit status stays 0.

With --auth the MQTT broker asks a real `gateway auth serve` who may connect, publish and subscribe. Every device logs
in with its own secret and may use its own topics alone; the gateway is a user with its own rules. With
--json there is also access: logins and topics, allowed and denied. Not together with --chaos.

Ctrl-C ends the demo in order, with the account; a second one ends it at once.
"""
_STAGES = {"kafka": "Kafka", "silver": "silver"}
_NEEDED = {"rich": "rich", "jpype": "JPype1"}
_NEEDED_WITH_AUTH = {"argon2": "argon2-cffi"}
_NEEDED_WITH_SPARK = {"pyspark": "pyspark", "pyarrow": "pyarrow", "deltalake": "deltalake"}


def add_parser(commands: Commands) -> None:
    parser = commands.verb("demo", _run, epilog=_EPILOG, json="print the account as one JSON object", config="")
    flow = "how long messages flow"
    add_number(parser, "--duration", within=(1.0, 86_400.0), default=60.0, metavar="S", what=flow)
    add_number(parser, "--devices", within=(1, 10_000), default=200, what="simulated devices")
    each = "messages per second of each device"
    add_number(parser, "--rate", within=(0.01, 100.0), default=1.0, metavar="R", what=each)
    parser.add_argument("--seed", type=int, default=1, help="seed of the devices' measurements (default: 1)")
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="without the Spark job")
    flag(parser, "--chaos", "kill the gateway and freeze Kafka meanwhile, beside a plain bridge")
    flag(parser, "--auth", "let the MQTT broker ask the access service; a secret for every device")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave data and logs in DIR instead of removing them")


def _run(arguments: argparse.Namespace) -> int:
    """Starts a real Kafka broker and a real MQTT broker on free ports of this machine, the gateway between them,
    simulated devices that publish telemetry, and Spark jobs that write it to the tables bronze, silver, gold and
    anomalies. Ends with an account of every message.

    It needs only Python: brokers, and Java if it is missing, are downloaded once. Nothing keeps running.
    """
    import asyncio
    import json
    import signal

    _require_extra(spark=arguments.spark, auth=arguments.auth)
    from gateway.devices.commanded import render_commands
    from gateway.local.demo.account import render
    from gateway.local.demo.alerts import render_loop
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
        result = asyncio.run(_run_with_view(options))
    except (asyncio.CancelledError, KeyboardInterrupt):
        tell("Ended at once, without an account. Nothing keeps running.", to=sys.stderr)
        return 128 + signal.SIGINT
    told = render(result.account, _STAGES)
    told += "".join(f"\n{finding}" for finding in result.findings())
    if result.access is not None:
        told += f"\n{result.access.sentence()}"
    if result.commands is not None:
        told += f"\n\n{render_commands(result.commands)}"
    if result.loop is not None:
        told += f"\n\n{render_loop(result.loop)}"
    if result.chaos is not None:
        told += f"\n\n{render_chaos(result.chaos)}"
    told += f"\n\n{_report_sentence(result, options)}"
    if options.json:
        print(json.dumps(result.as_json()))
        print(told, file=sys.stderr)
    else:
        tell(f"\n{told}")
        if result.latency_p50_ms is not None:
            tell(f"Device to Kafka consumer: p50 {result.latency_p50_ms} ms, p99 {result.latency_p99_ms} ms.")
    if result.account.missing and options.keep is None:
        tell("Run it again with --keep DIR to keep the data of every part.", to=sys.stderr)
    if options.keep is not None:
        _say_what_is_kept(options)
    commands = ExitStatus.OK if result.commands is None else result.commands.exit_status
    return int(result.account.exit_status or commands)


def _report_sentence(result: DemoResult, options: DemoOptions) -> str:
    if result.report is not None:
        return f"Report, with plots: {result.report}"
    return "Report: none could be made." if options.spark else "Report: none without Spark, whose tables it shows."


async def _run_with_view(options: DemoOptions) -> DemoResult:
    from gateway.local.demo.chaos import ChaosPlan, ChaosState
    from gateway.local.demo.show.state import DemoState
    from gateway.local.demo.show.view import LiveView, PlainView

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
        from gateway.local.demo.run import run_demo  # half a second of imports, while the view shows

        return await run_demo(options, state, view)
    finally:
        view.stop()


def _say_what_is_kept(options: DemoOptions) -> None:
    assert options.keep is not None
    root = options.keep.resolve()
    print(f"Kept in {root}:", file=sys.stderr)
    if options.spark:
        print("  lake/          Spark's tables: bronze, silver, silver_quarantine, gold, anomalies", file=sys.stderr)
        print("  demo-report.html  devices, signals, late and lost data, with plots", file=sys.stderr)
    print("  kafka/         Kafka's data and log", file=sys.stderr)
    if options.auth:
        print("  auth/          users, rules and secrets; gateway auth … --config auth/auth.toml", file=sys.stderr)
    print("  gateway.toml   the gateway's settings, and *.log of every part", file=sys.stderr)


def _require_extra(*, spark: bool, auth: bool) -> None:
    needed = {**_NEEDED, **(_NEEDED_WITH_SPARK if spark else {}), **(_NEEDED_WITH_AUTH if auth else {})}
    require("The demo", needed, "embedded,auth" if auth else "embedded")
