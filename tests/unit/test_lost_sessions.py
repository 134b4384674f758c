"""Sessions that the broker had lost: what is a loss and what is none, what is said of it, and when that ends."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from config.errors import ExitStatus
from gateway.data_dir.lost_sessions import LostSession, LostSessions, acknowledge, read_losses
from gateway.data_dir.session_registry import SessionRecord
from gateway.health.emqx.problems import said_of_counts
from tests.command_line import Cli

A, B = "mqtt://a:1883", "mqtt://b:1883"
HOUR_MS = 3_600_000


class Site:
    """A data directory, and what the lives in it found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_ms = 1_700_000_000_000
        self.found: list[LostSession] = []

    @asynccontextmanager
    async def life(self, *, slot: int = 0, crashes: bool = False) -> AsyncIterator[LostSessions]:
        file = self.folder / f"worker-{slot}.lost-sessions.json"
        lost = LostSessions(file, found=self.found.append, clock_ms=lambda: self.now_ms)
        await lost.start()
        yield lost
        if not crashes:
            await lost.stop(0)
        elif lost._writing is not None:
            await lost._writing


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def missed(lost: LostSessions, *, addresses: tuple[str, ...] = (A,), expiry_ms: int | None = HOUR_MS) -> bool:
    return lost.absent("0", "gw-0-0", A, addresses, expiry_ms) is not None


async def test_a_session_that_stood_and_is_not_there_is_lost_and_the_first_one_ever_is_not(site: Site) -> None:
    async with site.life() as lost:
        assert not missed(lost), "the first connect ever"
        lost.stands("gw-0-0", [A])
        lost.left("gw-0-0")
        site.now_ms += 12_300
        lost.left("gw-0-0")  # an attempt in vain ends too
        with capture_logs() as logs:
            assert missed(lost)
        assert [(line["event"], line["away_s"]) for line in logs] == [("mqtt_session_lost", 12.3)]
        assert not missed(lost), "until it stands again there is nothing more to lose"
        (problem,) = lost.problems()
        assert (problem.id, problem.severity) == ("session-lost", "critical")
        assert "session 0 (gw-0-0) at 2023-11-14T22:13:32Z, after 12.3 s" in problem.text
        assert "gateway acknowledge" in problem.check
        assert [(loss.client_id, loss.at_ms - (loss.left_ms or 0)) for loss in site.found] == [("gw-0-0", 12_300)]
        lost.stands("gw-0-0", [A])
        lost.left("gw-0-0")
        assert missed(lost)
        assert "2 sessions: " in lost.problems()[0].text


async def test_it_outlives_the_worker_and_ends_after_a_day(site: Site) -> None:
    async with site.life() as lost:
        lost.stands("gw-0-0", [A])
    site.now_ms += 2 * HOUR_MS
    async with site.life() as lost:
        assert missed(lost), "lost between two lives"
        text = lost.problems()[0].text
        assert "after 2.0 h, longer than mqtt.session_expiry (60 min)" in text
    async with site.life() as lost:
        assert lost.problems()[0].text == text
        assert [one["client_id"] for one in lost.facts()] == ["gw-0-0"]
        site.now_ms += 24 * HOUR_MS
        assert lost.problems() == ()
        assert lost.facts() == []


async def test_after_a_crash_nobody_knows_since_when_it_was_away(site: Site) -> None:
    async with site.life(crashes=True) as lost:
        lost.stands("gw-0-0", [A])
    async with site.life() as lost:
        assert missed(lost)
        assert site.found[0].left_ms is None
        assert "disconnected at an unknown time, by a process that was killed" in lost.problems()[0].text
        lost.announce_again()
        assert len(site.found) == 2, "the crash may have been before the ledger had it"


async def test_after_a_crash_the_end_of_an_earlier_life_is_not_when_it_was_last_connected(site: Site) -> None:
    async with site.life() as lost:
        lost.stands("gw-0-0", [A])
    async with site.life(crashes=True) as lost:
        lost.stands("gw-0-0", [A])
        site.now_ms += 24 * HOUR_MS
    async with site.life() as lost:
        assert missed(lost)
    assert site.found[0].left_ms is None


@pytest.mark.parametrize("how", ["ended", "another broker"])
async def test_what_was_ended_or_is_another_brokers_is_not_lost(site: Site, how: str) -> None:
    async with site.life() as lost:
        lost.stands("gw-0-0", [A])
        if how == "ended":
            lost.ended("gw-0-0")
    async with site.life() as lost:
        assert not missed(lost, addresses=(B,) if how != "ended" else (A,))
        assert lost.problems() == ()


async def test_a_loss_while_a_session_is_handed_to_another_slot_is_noticed_there_and_only_once(site: Site) -> None:
    async with site.life() as lost:
        lost.stands("gw-0-0", [A])
    site.now_ms += 5000
    (site.folder / "worker-7.lost-sessions.json").write_text("{")
    async with site.life(slot=1) as lost:
        lost.begins(["gw-0-0", "gw-0-1"])
        assert lost.absent("1", "gw-0-1", A, (A,), HOUR_MS) is None, "nobody ever had it"
        assert missed(lost), "the slot that has it now did not know that it stood"
        assert (site.found[0].client_id, site.found[0].at_ms - (site.found[0].left_ms or 0)) == ("gw-0-0", 5000)
        assert not missed(lost), "said twice"
    async with site.life(slot=1) as lost:
        lost.begins([])  # recorded in this slot by now
        assert not missed(lost), "said again by the next life, before it stood here"
    async with site.life(slot=2) as lost:
        lost.begins(["gw-0-0"])
        assert not missed(lost, addresses=(B,)), "another broker's"
    async with site.life(slot=3) as lost:
        lost.begins(["gw-0-0"])
        lost.stands("gw-0-0", [A])
        lost.ended("gw-0-0")
        assert not missed(lost), "it stood here, and was ended here"
    assert len(site.found) == 1


async def test_what_another_slot_has_by_now_is_no_loss_of_the_former(site: Site) -> None:
    async with site.life() as lost:
        lost.stands("gw-0-0", [A])
        lost.stands("gw-0-1", [A])
    async with site.life() as lost:
        lost.left("gw-0-0")
        lost.keeps(["gw-0-1"])
        assert not missed(lost), "the other slot has ended it meanwhile"
        assert lost.absent("1", "gw-0-1", A, (A,), HOUR_MS) is not None, "its own"
        assert not lost.away(), "it is not waited for"
    assert [loss.client_id for loss in site.found] == ["gw-0-1"]


async def test_an_acknowledgement_ends_it_for_every_worker_until_the_next(site: Site) -> None:
    async with site.life() as lost:
        lost.stands("gw-0-0", [A])
        assert missed(lost)
        assert not lost.away()
        assert lost.unexplained()
        lost.explain("EMQX counted none of it.")
        assert not lost.unexplained()
        assert lost.problems()[0].text.endswith("EMQX counted none of it.")
    (read,), _ = read_losses(site.folder, site.now_ms)
    assert read.emqx == "EMQX counted none of it."
    acknowledge(site.folder, [read])
    assert read_losses(site.folder, site.now_ms) == ([], [])
    async with site.life() as lost:
        assert lost.problems() == ()
        lost.stands("gw-0-0", [A])
        site.now_ms += 1
        assert missed(lost)
        assert len(lost.problems()) == 1


async def test_an_acknowledgement_under_a_wrong_clock_hides_no_later_loss(site: Site) -> None:
    """Seen while the clock was three hours ahead: the losses of the next three hours were taken for seen."""
    async with site.life() as lost:
        site.now_ms += 3 * HOUR_MS
        for moment in range(3):
            lost.stands("gw-0-0", [A])
            assert missed(lost)
            assert len(lost.open()) == 1, "the one just now"
            await lost._writing
            acknowledge(site.folder, read_losses(site.folder, site.now_ms)[0])
            assert lost.problems() == (), "and those before stay seen"
            site.now_ms -= 0 if moment else 3 * HOUR_MS
            site.now_ms += 1


@pytest.mark.parametrize("text", ["1700000000000\n", "{", "[1]"])
async def test_marks_that_cannot_be_read_are_said_and_what_they_hid_is_shown(site: Site, text: str) -> None:
    """The first is an older gateway's: a moment up to which all was seen."""
    marks = site.folder / "lost-sessions.acknowledged"
    async with site.life() as lost:
        lost.stands("gw-0-0", [A])
        assert missed(lost)
    marks.write_text(text)
    with capture_logs() as logs:
        async with site.life() as lost:
            assert len(lost.problems()) == 1
    assert [line["event"] for line in logs] == ["lost_sessions_marks_not_read"]
    assert "gateway acknowledge" in logs[0]["consequence"]
    acknowledge(site.folder, read_losses(site.folder, site.now_ms)[0])
    with capture_logs() as logs:
        async with site.life() as lost:
            assert lost.problems() == ()
    assert logs == []


async def test_the_first_start_after_an_upgrade_knows_the_sessions_of_the_registry(site: Site) -> None:
    """The registry is older than this account: without it the loss in the restart of an upgrade was not noticed."""
    path = site.folder / "worker-0.lost-sessions.json"
    records = [SessionRecord("gw-0-0", "0", ("$share/gw/a/#",), "5.0", (A,))]
    lost = LostSessions(path, found=site.found.append, recorded=lambda: records, clock_ms=lambda: site.now_ms)
    await lost.start()
    assert missed(lost)
    await lost.stop(0)
    path.unlink()
    for life_ in (1, 2):  # a first start is killed before it has connected
        recorded = records if life_ == 2 else []
        lost = LostSessions(
            path, found=site.found.append, recorded=lambda recorded=recorded: recorded, clock_ms=lambda: site.now_ms
        )
        await lost.start()
        if lost._writing is not None:
            await lost._writing
    assert not missed(lost), "it was recorded, and never stood"


async def test_a_file_that_makes_no_sense_is_said_and_a_full_disk_ends_nothing(site: Site) -> None:
    path = site.folder / "worker-0.lost-sessions.json"
    for text in ("{", "[]", '{"version": 1}', '{"version": 2}'):
        path.write_text(text)
        with capture_logs() as logs:
            async with site.life(crashes=True):
                pass
        assert [line["event"] for line in logs] == ["lost_sessions_not_read"], text
        assert read_losses(site.folder, site.now_ms) == ([], [])
    path.unlink()
    path.with_name(f"{path.name}.draft").mkdir()
    with capture_logs() as logs:
        async with site.life() as lost:
            lost.stands("gw-0-0", [A])
            assert missed(lost)
            assert len(lost.problems()) == 1
    assert {line["event"] for line in logs} == {"mqtt_session_lost", "lost_sessions_not_kept"}


@pytest.mark.parametrize(("before", "now", "text"), [
    ({}, {"delivery.dropped": 9}, "EMQX's earlier counts are unknown."),
    ({"delivery.dropped": 9}, {"delivery.dropped": 9}, "EMQX counted none of it (delivery.dropped, "),
    (
        {"delivery.dropped": 7, "messages.dropped.no_subscribers": 1},
        {"delivery.dropped": 9, "messages.dropped.no_subscribers": 744},
        "of all clients: delivery.dropped +2, messages.dropped.no_subscribers +743.",
    ),
    (
        {"delivery.dropped": 9},
        {"delivery.dropped": 2},
        "until then is unknown. Since then EMQX counted, of all clients: delivery.dropped +2.",
    ),
    ({"delivery.dropped": 9}, {"delivery.dropped": 0}, "unknown. Since then EMQX counted, of all clients: none of it."),
])  # fmt: skip
def test_what_emqx_counted_beside_it(before: dict[str, int], now: dict[str, int], text: str) -> None:
    assert text in said_of_counts(before, now)


async def test_the_command_shows_and_acknowledges(site: Site, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    config = site.folder / "gateway.toml"
    config.write_text('[[routes]]\nname = "t"\nfilters = ["a/#"]\ntopic = "t"\n')
    monkeypatch.setenv("GATEWAY_DATA_DIR", os.fspath(site.folder))
    arguments = ["acknowledge", "--config", os.fspath(config)]
    assert "No session is known to be lost" in cli(*arguments, status=ExitStatus.NOT_FOUND).out
    damaged = site.folder / "worker-1.lost-sessions.json"
    damaged.write_text("{")
    assert cli(*arguments, status=ExitStatus.INCOMPLETE).out.startswith(f"{damaged} is damaged.")
    lost = LostSessions(site.folder / "worker-0.lost-sessions.json", found=site.found.append)
    lost.stands("gw-0-0", [A])
    assert missed(lost)
    await lost.stop(0)
    text = cli(*arguments, status=ExitStatus.INCOMPLETE).out
    assert "Lost: session 0 (gw-0-0) at " in text
    assert text.endswith("Acknowledged: 1.\n")
    assert lost.problems() == (), "the worker sees it at its next look"
    damaged.unlink()
    cli(*arguments, status=ExitStatus.NOT_FOUND)
    assert json.loads((site.folder / "worker-0.lost-sessions.json").read_text())["losses"], "it stays written down"
    monkeypatch.setenv("GATEWAY_DATA_DIR", os.fspath(site.folder / "another"))
    assert "No such file" in cli(*arguments, status=ExitStatus.FAILED).err
