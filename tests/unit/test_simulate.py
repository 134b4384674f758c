"""``gateway simulate``: when devices send, what they do wrong, and what they say they did."""

import io
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from config.errors import ExitStatus
from gateway.devices.fleet import Fleet, FleetCounts, FleetSettings
from gateway.devices.mischief import CORRUPT, FaultShares, Mischief
from gateway.devices.outbox import DeviceLedger
from gateway.devices.physics import build_fleet
from gateway.devices.profiles import PROFILES
from gateway.devices.simulation import account_of
from tests.command_line import Cli


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_only_bends_time(name: str) -> None:
    moments = [PROFILES[name].moment_s(at / 10) for at in range(9600)]
    assert all(earlier <= later for earlier, later in pairwise(moments))
    period = {"steady": 1, "burst": 10, "night-and-day": 240}[name]
    for periods in (1, 2):
        assert PROFILES[name].moment_s(period * periods) == pytest.approx(period * periods, abs=0.01)
    steps = [later - earlier for earlier, later in pairwise(moments)]
    assert 0.1 / min(steps) == pytest.approx(PROFILES[name].peak, rel=0.05), "the highest rate is what it says"


def test_a_burst_is_a_second_of_ten() -> None:
    moments = [PROFILES["burst"].moment_s(at / 10) for at in range(1000)]
    assert all(moment % 10 <= 1.0 + 1e-9 for moment in moments)


SHARES = FaultShares(duplicates=0.1, reorder=0.1, wrong_clock=0.5, corrupt=0.05, disconnects=0.1)


def payloads(mischief: Mischief, count: int) -> list[bytes]:
    out = [one for n in range(count) for one in mischief.payloads({"device": "d", "seq": n, "ts": 1000})]
    return out + mischief.rest()


def test_the_same_seed_does_the_same_wrong() -> None:
    assert payloads(Mischief(SHARES, 7, "d"), 200) == payloads(Mischief(SHARES, 7, "d"), 200)
    assert payloads(Mischief(SHARES, 7, "d"), 200) != payloads(Mischief(SHARES, 8, "d"), 200)


def test_what_it_says_it_did_is_what_it_did() -> None:
    mischief = Mischief(SHARES, 1, "d")
    sent = payloads(mischief, 2000)
    assert len(sent) == len(mischief.numbers)
    for payload, number in zip(sent, mischief.numbers, strict=True):
        if number == CORRUPT:
            with pytest.raises(ValueError, match=r"."):
                json.loads(payload)
        else:
            assert json.loads(payload) == {"device": "d", "seq": number, "ts": 1000 + mischief.clock_offset_ms}
    readable = [number for number in mischief.numbers if number != CORRUPT]
    counts = Counter(readable)
    corrupt_copies = mischief.numbers.count(CORRUPT)
    assert corrupt_copies >= mischief.corrupt > 50
    assert sum(counts.values()) - len(counts) + corrupt_copies - mischief.corrupt == mischief.duplicates > 100
    first = list(dict.fromkeys(readable))
    behind = sum(later < earlier for earlier, later in pairwise(first))
    assert 0 < behind <= mischief.reordered
    assert len(counts) + mischief.corrupt == 2000, "nothing is lost on purpose"


def test_without_faults_nothing_is_wrong() -> None:
    mischief = Mischief(FaultShares(), 1, "d")
    assert [json.loads(one)["seq"] for one in payloads(mischief, 50)] == list(range(50))
    assert not any(mischief.disconnects() for _ in range(100))
    assert mischief.clock_offset_ms == 0


def test_the_account_counts_readings_and_messages() -> None:
    mischief = Mischief(FaultShares(duplicates=1.0), 1, "d")
    payloads(mischief, 3)  # 0 0 1 1 2 2
    # The last copy was never sent; reading 1 has no acknowledgement.
    ledgers = {"d": DeviceLedger(5, frozenset({2, 3}))}
    counts = FleetCounts(1, 5, 3, 0, 0, reconnects=2, unheard=1, refused=0)
    account = account_of(ledgers, {"d": mischief}, counts, cuts=4, seconds=1.0)
    assert (account.readings, account.messages, account.unsent) == (3, 5, 1)
    assert (account.acknowledged_messages, account.acknowledged_readings) == (3, 2)
    assert account.unacknowledged_messages == 2
    assert (account.disconnects, account.reconnects, account.unheard, account.duplicates) == (4, 2, 1, 3)


def test_a_fleet_of_one_type() -> None:
    assert {device.type for device in build_fleet(20, 1, only="pump")} == {"pump"}
    assert len({device.device for device in build_fleet(20, 1, only="pump")}) == 20


def test_nobody_elses_broker_is_loaded_unasked(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    words = ("simulate", "--mqtt", "mqtt://192.0.2.1", "--devices", "50", "--rate", "2")
    told = "50 devices will publish 100 messages a second to mqtt://192.0.2.1:1883"
    assert told in cli(*words, status=ExitStatus.USAGE).err
    typed = io.TextIOWrapper(io.BytesIO(b"\xff"))  # no line, and no UTF-8
    typed.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", typed)
    said = cli(*words, status=ExitStatus.USAGE)
    assert said.err.endswith("May it load that broker? [y/N] gateway: Nothing was published.\n")
    assert not said.out


@pytest.mark.parametrize("arguments", [
    ["--devices", "10000", "--rate", "10"],
    ["--devices", "1000", "--rate", "10", "--profile", "burst"],
    ["--devices", "1000", "--rate", "10", "--duration", "1d"],
    ["--prefix", "a/+"],
    ["--secrets", "absent"],
    ["--faults", "gravity=1"],
    ["--faults", "corrupt=2"],
    ["--devices", "0"],
    ["--duration", "0s"],
])  # fmt: skip
def test_too_much_and_what_is_out_of_bounds_is_refused(
    cli: Cli, arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    cli("simulate", *arguments, status=ExitStatus.USAGE)


@pytest.mark.parametrize("text", [b"name,secret\nd-1\n", b"name,secret\nd-1,\xff\n"])
def test_secrets_that_are_none_are_a_sentence(text: bytes, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "secrets").write_bytes(text)
    said = cli("simulate", "--secrets", str(tmp_path / "secrets"), status=ExitStatus.CONFIG).err
    assert "a name and a secret in each row" in said


def test_an_empty_line_among_the_secrets_is_none(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("name,secret\nd-1,s\n\n")
    Fleet(FleetSettings("127.0.0.1", 1, devices=1, rate=1.0, seed=1, secrets_file=str(tmp_path / "secrets")))
