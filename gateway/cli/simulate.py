"""``gateway simulate``: devices that publish to the MQTT broker, and the account of what they did."""

from __future__ import annotations

__all__ = ["add_parser"]

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus
from gateway.cli.arguments import UsageError, add_config, add_json, between, load_noted
from gateway.cli.table import tell

if TYPE_CHECKING:
    from config.settings import Settings
    from config.values.addresses import MqttAddress
    from gateway.devices.fleet import FleetCounts, FleetSettings
    from gateway.devices.mischief import FaultShares
    from gateway.devices.simulation import SimulationAccount

PROFILE_NAMES = ("steady", "burst", "night-and-day")  # of gateway.devices.profiles, which no other command should load
_MOST_PER_SECOND = 50_000.0
_MOST_MESSAGES = 20_000_000.0
_FAULTS = {
    "duplicates": "share of the messages that are sent twice",
    "reorder": "share of the messages that come behind the next one",
    "wrong_clock": "share of the devices whose clock is years off",
    "corrupt": "share of the messages that are broken",
    "disconnects": "share of the messages after which the device loses its connection without a word",
}
_DESCRIPTION = """\
Simulates devices: each has an MQTT connection of its own and publishes JSON telemetry of a small physical model to
devices/NAME/telemetry at the broker of the settings, for --duration or until Ctrl-C. Then it says what was published
and acknowledged, by readings (device and seq), so that it can be compared with what arrived.

It publishes, and nothing else: no retained message, no will, no session is left behind. It is a load on the broker and
on everything behind it, so it asks before it does that to a broker on another machine.
"""
_EPILOG = """\
examples:
  gateway simulate --devices 50 --rate 2 --duration 1m
  gateway simulate --mqtt mqtts://emqx.example.com:8883 --config gateway.toml --profile burst --yes
  gateway simulate --devices 200 --faults duplicates=0.01,reorder=0.01,wrong-clock=0.05

exit status: 0 everything published was acknowledged, 5 not everything was, 69 no broker, 77 it refuses the devices
"""


def add_parser(commands: Any) -> None:
    """Add ``gateway simulate`` to the command's parser."""
    parser = commands.add_parser(
        "simulate",
        help="publish as many devices would, with faults if wanted",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("--mqtt", metavar="URL", help="mqtt://HOST:PORT, mqtts, ws, wss (default: mqtt.addresses)")
    parser.add_argument(
        "--devices", type=between(1, 10_000, whole=True), default=10, metavar="N", help="1 to 10,000 (default: 10)"
    )
    parser.add_argument(
        "--rate", type=between(0.001, 1000), default=1.0, metavar="R", help="messages per second of each (default: 1)"
    )
    parser.add_argument("--duration", type=_length, default=60.0, metavar="LENGTH", help="30s, 10m (default: 1m)")
    parser.add_argument(
        "--profile",
        choices=PROFILE_NAMES,
        default="steady",
        help="steady: evenly; burst: everything in one second of ten; night-and-day: a tenth of the rate to nearly "
        "twice of it, a day taking four minutes",
    )
    parser.add_argument(
        "--type", choices=("mix", "thermostat", "meter", "pump"), default="mix", help="what they measure (default: mix)"
    )
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=1, help="(default: 1)")
    parser.add_argument(
        "--prefix", default="devices", metavar="T", help="the topics are T/NAME/telemetry (default: devices)"
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed: the same readings and faults (default: 1)")
    names = "; ".join(f"{name.replace('_', '-')}: {text}" for name, text in _FAULTS.items())
    parser.add_argument("--faults", type=_faults, metavar="NAME=SHARE,…", help=f"shares from 0 to 1. {names}")
    parser.add_argument(
        "--secrets",
        type=Path,
        metavar="FILE",
        help="CSV with name and secret of each device, which they log in with (default: all as mqtt.username)",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask, whoever's broker it is")
    add_json(parser)
    add_config(parser)
    parser.set_defaults(run=_run)


def _length(text: str) -> float:
    from config.values.grammar import parse_duration

    try:
        seconds = parse_duration(text).total_seconds()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1s to 1d")
    return seconds


def _faults(text: str) -> dict[str, float]:
    shares = {}
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        name = name.replace("-", "_")
        if name not in _FAULTS:
            known = ", ".join(one.replace("_", "-") for one in _FAULTS)
            raise argparse.ArgumentTypeError(f"{name!r} is none of the faults: {known}")
        shares[name] = between(0, 1)(share)
    return shares


def _run(arguments: argparse.Namespace) -> int:

    from gateway.cli.arguments import run_quietly
    from gateway.devices.fleet import FleetSettings
    from gateway.devices.mischief import FaultShares

    settings = load_noted(arguments.config, overrides=_overrides(arguments)).settings
    address = _address(settings)
    fleet = FleetSettings(
        host=address.host,
        port=address.port,
        devices=int(arguments.devices),
        rate=arguments.rate,
        seed=arguments.seed,
        secrets_file=_secrets(arguments.secrets),
        qos=arguments.qos,
        profile=arguments.profile,
        only=None if arguments.type == "mix" else arguments.type,
        prefix=_prefix(arguments.prefix),
        status=False,
    )
    _check_size(fleet, arguments.duration)
    _ask(arguments, fleet, address)
    faults = FaultShares(**(arguments.faults or {}))
    return run_quietly(_simulate(arguments, settings, address, fleet, faults), settings.log)


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    return {} if arguments.mqtt is None else {"mqtt.addresses": [arguments.mqtt]}


def _address(settings: Settings) -> MqttAddress:
    from config.values.addresses import parse_mqtt_address

    return parse_mqtt_address(settings.mqtt.addresses[0])


def _secrets(file: Path | None) -> str:
    if file is None:
        return ""
    if not file.is_file():
        raise UsageError(f"--secrets {file}: there is no such file.")
    return str(file)


def _prefix(text: str) -> str:
    if not text or any(character in text for character in "+#\0") or text.startswith("$"):
        raise UsageError(f"--prefix {text!r}: an MQTT topic to publish to has no + or # and does not begin with $.")
    return text.strip("/")


def _check_size(fleet: FleetSettings, duration_s: float) -> None:
    from gateway.devices.profiles import PROFILES

    mean = fleet.devices * fleet.rate
    peak = mean * PROFILES[fleet.profile].peak
    if peak > _MOST_PER_SECOND:
        raise UsageError(
            f"{fleet.devices} devices at {fleet.rate:g}/s, {fleet.profile}, would send {peak:,.0f} messages a second; "
            f"more than {_MOST_PER_SECOND:,.0f} are not sent from one process."
        )
    if mean * duration_s > _MOST_MESSAGES:
        raise UsageError(f"That makes {mean * duration_s:,.0f} messages, more than {_MOST_MESSAGES:,.0f}: be shorter.")


def _ask(arguments: argparse.Namespace, fleet: FleetSettings, address: MqttAddress) -> None:
    """Load on somebody's broker is put there only on purpose. Raises UsageError."""
    from config.values.addresses import is_loopback

    if arguments.yes or is_loopback(address.host):
        return
    total = fleet.devices * fleet.rate
    what = (
        f"{fleet.devices} devices will publish {total:,.0f} messages a second to {address}, below {fleet.prefix}/, "
        f"for {arguments.duration:g} s."
    )
    if not sys.stdin.isatty():
        raise UsageError(f"{what} That is not this machine: say --yes if it is meant.")
    tell(what, to=sys.stderr)
    if input("Is that broker yours to load? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise UsageError("Nothing was published.")


async def _simulate(
    arguments: argparse.Namespace, settings: Settings, address: MqttAddress, fleet: FleetSettings, faults: FaultShares
) -> int:
    import time
    from dataclasses import asdict

    from gateway.components.outward import Outward
    from gateway.devices.device import Way
    from gateway.devices.simulation import simulate
    from gateway.mqtt.login import Login

    live = sys.stderr.isatty()

    def show(counts: FleetCounts) -> None:
        if live:
            print(
                f"\r{counts.connected} of {fleet.devices} devices connected, {counts.published:,} published, "
                f"{counts.acknowledged:,} acknowledged\033[K",
                end="",
                file=sys.stderr,
                flush=True,
            )

    outward = Outward(settings)
    await outward.start()
    try:
        way = Way(address, settings.mqtt, Login(settings.mqtt, outward.mqtt))
        account = await simulate(fleet, way, faults, arguments.duration, show)
    finally:
        if live:
            print(file=sys.stderr)
        await outward.stop(time.monotonic_ns())
    print(json.dumps({"qos": fleet.qos, **asdict(account)}) if arguments.json else _text(account, fleet), end="\n")
    return ExitStatus.INCOMPLETE if account.unacknowledged_messages or account.unsent else ExitStatus.OK


def _text(account: SimulationAccount, fleet: FleetSettings) -> str:
    rows = [
        ("readings published", account.readings, "different ones: device and seq"),
        ("readings acknowledged", account.acknowledged_readings, "these must arrive, each at least once"),
        (
            "messages published",
            account.messages,
            f"{account.messages / account.seconds:,.0f}/s by {account.devices} devices",
        ),
        ("messages acknowledged", account.acknowledged_messages, ""),
        ("sent twice", account.duplicates, ""),
        ("behind the next one", account.reordered, ""),
        ("corrupt", account.corrupt, "they name no reading"),
        ("devices with a wrong clock", account.wrong_clocks, ""),
        ("connections lost on purpose", account.disconnects, ""),
        ("reconnects", account.reconnects, ""),
        ("heard by no subscriber", account.unheard, "the broker acknowledged and dropped them"),
        ("never sent", account.unsent, "the devices stopped before"),
    ]
    always = {"readings published", "readings acknowledged", "messages published", "messages acknowledged"}
    shown = [row for row in rows if row[1] or row[0] in always]
    width = max(len(row[0]) for row in shown)
    lines = [f"  {label:<{width}}  {number:>12,}  {note}".rstrip() for label, number, note in shown]
    if fleet.qos == 0:
        lines.append("  With QoS 0 a broker acknowledges nothing: acknowledged here means sent.")
    return "\n".join([f"What the devices did in {account.seconds:.1f} s, at QoS {fleet.qos}", *lines])
