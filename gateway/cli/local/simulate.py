"""``gateway simulate``: devices that publish to the MQTT broker, and their account."""

import argparse
import json
import sys
import time
from collections.abc import Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path

from config.errors import ExitStatus
from config.settings import Settings
from config.values.addresses import MqttAddress, is_loopback, parse_mqtt_address
from gateway.cli.arguments import (
    UsageError,
    add_number,
    agreed,
    between,
    duration,
    load_noted,
    run_quietly,
    topic_prefix,
    utf8,
)
from gateway.cli.parser import Commands, choice, flag
from gateway.cli.table import counted, progress, tell
from gateway.components.outward import Outward
from gateway.devices.commands import AnswerShares
from gateway.devices.device import Way
from gateway.devices.fleet import FleetCounts, FleetSettings
from gateway.devices.mischief import FaultShares
from gateway.devices.profiles import PROFILES
from gateway.devices.simulation import SimulationAccount, simulate
from gateway.mqtt.login import Login

_MOST_PER_SECOND = 50_000.0
_MOST_MESSAGES = 20_000_000.0
_FAULTS = {
    "duplicates": "share of the messages that are sent twice",
    "reorder": "share of the messages that come behind the next one",
    "wrong_clock": "share of the devices whose clock is years off",
    "corrupt": "share of the messages that are damaged",
    "disconnects": "share of the messages after which the device loses its connection without DISCONNECT",
}
_ANSWERS = {
    "failures": "share of the commands that are answered with 500",
    "late": "share that is answered after 45 s",
    "silent": "share that is done and never answered",
}
_EPILOG = """\
examples:
  gateway simulate --devices 50 --rate 2 --duration 1m
  gateway simulate --mqtt mqtts://emqx.example.com:8883 --config gateway.toml --profile burst --yes
  gateway simulate --devices 200 --faults duplicates=0.01,reorder=0.01,wrong-clock=0.05
  gateway simulate --devices 50 --commands failures=0.05,silent=0.01

exit status: 0 everything was acknowledged, 5 not everything was, or a device never connected, 69 no broker,
77 the broker refuses the devices
"""


def add_parser(commands: Commands) -> None:
    parser = commands.verb("simulate", _run, epilog=_EPILOG)
    parser.add_argument("--mqtt", metavar="URL", help="mqtt://HOST:PORT, mqtts, ws, wss (default: mqtt.addresses)")
    add_number(parser, "--devices", within=(1, 10_000), default=10, what="1 to 10,000")
    each = "messages per second of each"
    add_number(parser, "--rate", within=(0.001, 1000.0), default=1.0, metavar="R", what=each)
    parser.add_argument("--duration", type=_length, default=60.0, metavar="LENGTH", help="30s, 10m (default: 1m)")
    evenness = (
        "steady: evenly; burst: everything in one second of ten; night-and-day: a tenth of the rate to nearly twice of "
        "it, a day taking four minutes"
    )
    choice(parser, "--profile", tuple(PROFILES), evenness)
    choice(parser, "--type", ("mix", "thermostat", "meter", "pump"), "kind of the devices")
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=1, help="(default: 1)")
    parser.add_argument(
        "--prefix",
        type=utf8,
        default="devices",
        metavar="T",
        help="the topics are T/NAME/telemetry (default: devices)",
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed: the same readings and faults (default: 1)")
    names = "; ".join(f"{name.replace('_', '-')}: {text}" for name, text in _FAULTS.items())
    kind = partial(_shares, _FAULTS, "faults")
    parser.add_argument("--faults", type=kind, metavar="NAME=SHARE,…", help=f"shares from 0 to 1. {names}")
    names = "; ".join(f"{name}: {text}" for name, text in _ANSWERS.items())
    parser.add_argument(
        "--commands",
        type=partial(_shares, _ANSWERS, "answers"),
        nargs="?",
        const={},
        metavar="NAME=SHARE,…",
        help=f"the devices receive, obey and answer commands; shares from 0 to 1: {names}",
    )
    parser.add_argument(
        "--secrets",
        type=Path,
        metavar="FILE",
        help="CSV with the name and secret of each device's login (default: all as mqtt.username)",
    )
    flag(parser, "--yes", "do not ask, also for a broker on another machine")


def _length(text: str) -> float:
    seconds = duration(text)
    if not 1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1s to 1d")
    return seconds


def _shares(names: Collection[str], what: str, text: str) -> dict[str, float]:
    """How large a part of the messages each of the ``names`` is for, from "name=0.1,other=0.02". ``what`` they are is
    for the error."""
    shares = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        name = name.replace("-", "_")
        if name not in names:
            known = ", ".join(one.replace("_", "-") for one in names)
            raise argparse.ArgumentTypeError(f"{name!r} is none of the {what}: {known}")
        shares[name] = between(0.0, 1.0)(share)
    return shares


def _run(arguments: argparse.Namespace) -> int:
    """Simulates devices: each has an MQTT connection of its own and publishes JSON telemetry of a small physical model
    to devices/NAME/telemetry at the broker of the settings, for --duration or until Ctrl-C. Then it reports the
    published and acknowledged readings (device and seq), to compare them with those that arrived.

    With --commands they also subscribe to their commands, devices/NAME/req/#, obey and answer them (MQTT 5): {"every":
    5} makes a device publish one reading of five; every other command is answered with 200.

    It leaves no retained message, will or session. The broker and everything behind it has the load, so the command
    asks first when the broker is on another machine.
    """
    overrides = {} if arguments.mqtt is None else {"mqtt.addresses": [arguments.mqtt]}
    settings = load_noted(arguments.config, overrides=overrides).settings
    address = parse_mqtt_address(settings.mqtt.addresses[0])
    if arguments.secrets is not None and not arguments.secrets.is_file():
        raise UsageError(f"--secrets {arguments.secrets}: there is no such file.")
    fleet = FleetSettings(
        host=address.host,
        port=address.port,
        devices=arguments.devices,
        rate=arguments.rate,
        seed=arguments.seed,
        secrets_file=str(arguments.secrets or ""),
        qos=arguments.qos,
        profile=arguments.profile,
        only=None if arguments.type == "mix" else arguments.type,
        prefix=topic_prefix(arguments.prefix),
        status=False,
        commands=arguments.commands is not None,
    )
    if fleet.commands and settings.mqtt.protocol != "5":
        raise UsageError("--commands: the devices answer with properties of MQTT 5, and mqtt.protocol is not 5.")
    _check_size(fleet, arguments.duration)
    _ask(arguments, fleet, address)
    faults = FaultShares(**(arguments.faults or {}))
    answers = AnswerShares(**(arguments.commands or {}))
    return run_quietly(_simulate(arguments, settings, address, fleet, faults, answers), settings.log)


def _check_size(fleet: FleetSettings, duration_s: float) -> None:
    mean = fleet.devices * fleet.rate
    peak = mean * PROFILES[fleet.profile].peak
    if peak > _MOST_PER_SECOND:
        raise UsageError(
            f"{fleet.devices} devices at {fleet.rate:g}/s, {fleet.profile}, would send {peak:,.0f} messages a second; "
            f"one process sends {_MOST_PER_SECOND:,.0f} at most."
        )
    if mean * duration_s > _MOST_MESSAGES:
        raise UsageError(
            f"That makes {mean * duration_s:,.0f} messages, more than {_MOST_MESSAGES:,.0f}: shorten --duration."
        )


def _ask(arguments: argparse.Namespace, fleet: FleetSettings, address: MqttAddress) -> None:
    """Ask before loading a broker on another machine. Raises UsageError."""
    if arguments.yes or is_loopback(address.host):
        return
    total = fleet.devices * fleet.rate
    what = (
        f"{fleet.devices} devices will publish {total:,.0f} messages a second to {address}, below {fleet.prefix}/, "
        f"for {arguments.duration:g} s."
    )
    if not sys.stdin.isatty():
        raise UsageError(f"{what} That is another machine: give --yes to agree.")
    tell(what, to=sys.stderr)
    if not agreed("May it load that broker?"):
        raise UsageError("Nothing was published.")


async def _simulate(
    arguments: argparse.Namespace,
    settings: Settings,
    address: MqttAddress,
    fleet: FleetSettings,
    faults: FaultShares,
    answers: AnswerShares,
) -> int:
    def show(counts: FleetCounts) -> None:
        progress(
            f"{counts.connected} of {fleet.devices} devices connected, {counts.published:,} published, "
            f"{counts.acknowledged:,} acknowledged"
        )

    outward = Outward(settings)
    await outward.start()
    try:
        way = Way(address, settings.mqtt, Login(settings.mqtt, outward.mqtt))
        account = await simulate(fleet, way, faults, arguments.duration, show, answers)
    finally:
        progress("")
        await outward.stop(time.monotonic_ns())
    print(json.dumps({"qos": fleet.qos, **asdict(account)}) if arguments.json else _text(account, fleet), end="\n")
    missed = account.unacknowledged_messages or account.unsent or account.never_connected
    return ExitStatus.INCOMPLETE if missed else ExitStatus.OK


def _text(account: SimulationAccount, fleet: FleetSettings) -> str:
    rows = [
        ("readings published", account.readings, "different ones: device and seq"),
        ("readings acknowledged", account.acknowledged_readings, "each must arrive at least once"),
        (
            "messages published",
            account.messages,
            f"{account.messages / account.seconds:,.0f}/s by {account.devices} devices",
        ),
        ("messages acknowledged", account.acknowledged_messages, ""),
        ("sent twice", account.duplicates, ""),
        ("behind the next one", account.reordered, ""),
        ("corrupt", account.corrupt, "without a reading"),
        ("devices with a wrong clock", account.wrong_clocks, ""),
        ("connections lost on purpose", account.disconnects, ""),
        ("reconnects", account.reconnects, ""),
        ("without a subscriber", account.unheard, "the broker acknowledged and dropped them"),
        ("never sent", account.unsent, "the devices stopped before"),
        ("devices never connected", account.never_connected, "they took no readings"),
        ("commands received", account.commands, "different ones"),
        ("copies of commands", account.command_copies, "answered as the first, and not done again"),
        ("answers acknowledged", account.answers, ""),
    ]
    always = {"readings published", "readings acknowledged", "messages published", "messages acknowledged"}
    lines = counted(row for row in rows if row[1] or row[0] in always)
    if fleet.qos == 0:
        lines.append("  With QoS 0 a broker acknowledges nothing: acknowledged here means sent.")
    return "\n".join([f"The devices' account of {account.seconds:.1f} s, at QoS {fleet.qos}", *lines])
