"""Whatever part of a spool is cut, changed or gone: the rest is delivered, in order, and the missing are counted.

Files are changed at many places; each time everything stored must be either read back as it was, or be in the count.
"""

import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.errors import SpoolError
from bridge.spool import segments as spool_segments
from bridge.spool.record import FIXED_BYTES, ID_BITS, SpoolBatch
from bridge.spool.recovery import SpoolReport
from bridge.spool.spool import Spool
from bridge.spool.store import Store
from tests.unit.spool_path import opened_spool, read_batches, reopened

BATCHES = 60
PARTITIONS = 3
SEGMENT_BYTES = 8 << 10  # several segments
STORED = 51  # of which that many are left when the damage comes
INDEX_PLACES = 40


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.spool.segments.SEGMENT_BYTES", SEGMENT_BYTES)


def batch(number: int) -> SpoolBatch:
    data = random.Random(number).randbytes(200 + 37 * number % 900)
    return SpoolBatch("telemetry", number % PARTITIONS, "r", 1, False, number % 5 + 1, (1,), 1_700_000_000_000, data)


def expected() -> dict[int, list[SpoolBatch]]:
    """What is left per partition: the first three of each were delivered."""
    numbers = range(9, BATCHES)
    return {p: [batch(n) for n in numbers if n % PARTITIONS == p] for p in range(PARTITIONS)}


async def filled(folder: Path, *, clean: bool) -> None:
    """A spool that was used and then closed, or whose process died: its files as they were then."""
    spool = await opened_spool(folder)
    for number in range(0, BATCHES, 4):
        await spool.append([batch(n) for n in range(number, number + 4)])
        if number == 8:
            await spool.remember_topic("telemetry", PARTITIONS)
    for partition in range(PARTITIONS):
        first = (await spool.read("telemetry", partition, 0, 1 << 30)).batches[:3]
        spool.remove("telemetry", partition, [stored.id for stored in first])
    await spool.read("telemetry", 0, 0, 1)  # after which the removals are done
    if not clean:
        await spool._thread.run(shutil.copytree, folder, folder.with_name("dead"))  # between two of its jobs
    await spool.close()
    if not clean:
        shutil.rmtree(folder)
        folder.with_name("dead").rename(folder)


async def read_all(spool: Spool) -> tuple[dict[int, list[SpoolBatch]], int, int]:
    found: dict[int, list[SpoolBatch]] = {}
    batches = messages = 0
    for partition in range(PARTITIONS):
        after = 0
        while True:
            result = await spool.read("telemetry", partition, after, 3000)
            batches += result.lost_batches
            messages += result.lost_messages
            if not result.batches:
                break
            after = result.batches[-1].id
            found.setdefault(partition, []).extend(stored.batch for stored in result.batches)
    return found, batches, messages


async def verdict(folder: Path) -> SpoolReport:
    """Open, read everything, and compare with what was stored."""
    reports: list[SpoolReport] = []
    spool = Spool(folder, max_bytes=1 << 30, instance="gw", salvaged=reports.append)
    reports.append(await spool.open())
    assert spool.opening_steps or not spool.batches or not reports[0].sentence, "who waits sees progress"
    try:
        found, batches, messages = await read_all(spool)
        missing = missing_messages = 0
        for partition, wanted in expected().items():
            got = found.get(partition, [])
            places = [wanted.index(one) for one in got]  # foreign ones raise
            assert places == sorted(set(places)), f"partition {partition} is out of order or repeats: {places}"
            missing += len(wanted) - len(got)
            missing_messages += sum(one.messages for one in wanted if one not in got)
        told = batches + sum(report.lost_batches for report in reports)
        told_messages = messages + sum(report.lost_messages for report in reports)
        assert (told, told_messages) == (missing, missing_messages), reports
        assert spool.batches == STORED - missing
        assert spool.messages == sum(one.messages for ones in found.values() for one in ones)
        # It goes on working.
        ids = await spool.append([batch(1)])
        assert (await spool.read("telemetry", 1, ids[0] - 1, 1)).batches[0].batch == batch(1)
        spool.remove("telemetry", 1, ids)
    finally:
        await spool.close()
    return reports[0]


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
async def test_a_cut_segment_loses_what_was_cut_and_says_how_much(tmp_path: Path, clean: bool) -> None:
    await filled(tmp_path / "s", clean=clean)
    places = random.Random(1)
    for number, original in enumerate(segments(tmp_path / "s")):
        for size in [0, 5, 127, 128, original.stat().st_size - 1, *places.choices(range(original.stat().st_size), k=4)]:
            folder = tmp_path / f"{number}-{size}"
            shutil.copytree(tmp_path / "s", folder, dirs_exist_ok=True)
            with (folder / original.name).open("r+b") as file:
                file.truncate(size)
            report = await verdict(folder)
            assert report.exact
            assert re.search(r"was damaged: .*lost are \d+ batches with \d+ messages\.", report.sentence)
            batches, again = await reopened(folder)
            assert (again.sentence, batches) == ("", STORED - report.lost_batches), "told twice"
            shutil.rmtree(folder)


async def test_a_segment_that_is_gone_is_counted(tmp_path: Path) -> None:
    await filled(tmp_path / "s", clean=False)
    for original in segments(tmp_path / "s"):
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "s", folder)
        (folder / original.name).unlink()
        report = await verdict(folder)
        assert report.exact
        assert "is missing" in report.sentence
        shutil.rmtree(folder)


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
async def test_flipped_bits_in_the_log_lose_the_batches_they_hit(tmp_path: Path, clean: bool) -> None:
    await filled(tmp_path / "s", clean=clean)
    places = random.Random(2)
    lost = 0
    for original in segments(tmp_path / "s"):
        for at in [0, 20, *places.choices(range(128, original.stat().st_size), k=6)]:
            folder = tmp_path / "copy"
            shutil.copytree(tmp_path / "s", folder)
            flip(folder / original.name, at)
            await verdict(folder)
            lost += 1
            shutil.rmtree(folder)
    assert lost > 20


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("how", ["cut", "flipped"])
async def test_a_damaged_index_loses_nothing(tmp_path: Path, clean: bool, how: str) -> None:
    await filled(tmp_path / "s", clean=clean)
    original = tmp_path / "s" / "index.db"
    victim = original if clean else tmp_path / "s" / "index.db-wal"
    places = random.Random(3).choices(range(victim.stat().st_size), k=INDEX_PLACES)
    for at in [0, 17, 100, *places]:
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "s", folder)
        damaged = folder / victim.name
        if how == "cut":
            with damaged.open("r+b") as file:
                file.truncate(at)
        else:
            flip(damaged, at)
        try:
            report = await verdict(folder)
        except SpoolError as error:
            assert "format" in str(error)  # noqa: PT017 - the number of the format itself was hit: told, nothing touched
        else:
            assert report.lost_batches == 0
            assert report.exact
        shutil.rmtree(folder)


async def test_a_missing_index_is_made_anew(tmp_path: Path) -> None:
    await filled(tmp_path / "s", clean=True)
    (tmp_path / "s" / "index.db").unlink()
    report = await verdict(tmp_path / "s")
    assert "its index was missing" in report.sentence
    assert report.lost_batches == 0


async def test_index_and_log_damaged_together_are_counted_by_the_tally(tmp_path: Path) -> None:
    await filled(tmp_path / "s", clean=True)
    flip(tmp_path / "s" / "index.db", 0)
    victim = segments(tmp_path / "s")[2]
    flip(victim, 1000)
    report = await verdict(tmp_path / "s")
    assert report.lost_batches == 1
    assert report.exact
    assert [path.name.split("-")[0] for path in report.put_aside] == ["index.db.damaged"]
    assert report.put_aside[0].exists()


async def test_the_numbers_of_lost_batches_are_not_used_again(tmp_path: Path) -> None:
    await filled(tmp_path / "s", clean=True)
    (tmp_path / "s" / "index.db").unlink()
    segments(tmp_path / "s")[-1].unlink()
    spool = await opened_spool(tmp_path / "s")
    assert spool.batches < STORED
    ids = await spool.append([batch(number) for number in range(PARTITIONS)])
    assert {id_ % (1 << ID_BITS) for id_ in ids} == {BATCHES // PARTITIONS + 1}
    await spool.close()


def beyond_its_index(folder: Path) -> tuple[list[int], int]:
    """A spool whose process died right after four appends of a batch each; the index has the first one. Returns where
    in the log each starts, and its end."""
    store = Store(folder.with_name("alive"), "gw", lambda _report: None)
    store.open()
    starts = []
    for number in range(4):
        store.append([[batch(number * PARTITIONS)]])
        if number == 0:
            store.index_appended()
        starts.append(store.state.log.end - batch(number * PARTITIONS).stored_bytes)
    end = store.state.log.end
    shutil.copytree(folder.with_name("alive"), folder)
    store.close()
    return starts, end


@pytest.mark.parametrize("victim", [1, 2, 3])
async def test_a_batch_that_only_the_log_had_is_counted_by_its_head(tmp_path: Path, victim: int) -> None:
    starts, _ = beyond_its_index(tmp_path / "s")
    flip(tmp_path / "s" / "000000000001.log", starts[victim] + FIXED_BYTES + 100)
    batches, report = await reopened(tmp_path / "s")
    assert (batches, report.lost_batches) == (3, 1)
    assert (report.lost_messages, report.exact) == (batch(victim * PARTITIONS).messages, True)
    assert await reopened(tmp_path / "s") == (3, SpoolReport()), "told twice"
    (tmp_path / "s" / "index.db").unlink()
    assert (await reopened(tmp_path / "s"))[1].lost_batches == 0, "told again with a new index"


@pytest.mark.parametrize("at", [1, 30], ids=["magic", "id"])
@pytest.mark.parametrize("victim", [1, 3])
async def test_a_head_that_only_the_log_had_is_told_as_at_least(tmp_path: Path, victim: int, at: int) -> None:
    starts, _ = beyond_its_index(tmp_path / "s")
    flip(tmp_path / "s" / "000000000001.log", starts[victim] + at)
    batches, report = await reopened(tmp_path / "s")
    assert batches == 3
    assert not report.exact
    assert "at least 0 batches" in report.sentence
    assert (await reopened(tmp_path / "s"))[1].sentence == "", "told twice"


async def test_a_write_that_was_cut_short_is_no_damage(tmp_path: Path) -> None:
    """Nobody was told that its batch is stored."""
    starts, end = beyond_its_index(tmp_path / "s")
    for size in {starts[3] + 1, starts[3] + 20, starts[3] + FIXED_BYTES, starts[3] + FIXED_BYTES + 20, end - 1}:
        for filled_up in (False, True):  # by a file system that had made the file longer, and written nothing
            folder = tmp_path / f"{size}-{filled_up}"
            shutil.copytree(tmp_path / "s", folder)
            with (folder / "000000000001.log").open("r+b") as file:
                file.truncate(starts[3] if filled_up else size)
                file.truncate(size)
            batches, report = await reopened(folder)
            assert (batches, report.sentence) == (3, "")


async def test_what_a_crash_cut_is_not_taken_for_a_later_batch(tmp_path: Path) -> None:
    """Its ids are used again, also where damage before it keeps the segment, and a new index finds both."""
    store = Store(tmp_path / "alive", "gw", lambda _report: None)
    store.open()
    store.append([[batch(0)]])
    store.append([[batch(3)]])
    damaged = store.state.log.end - 10
    store.append([[batch(6), batch(9)]])
    shutil.copytree(tmp_path / "alive", tmp_path / "s")
    end = store.state.log.end
    store.close()
    log = tmp_path / "s" / "000000000001.log"
    flip(log, damaged)
    with log.open("r+b") as file:
        file.truncate(end - 5)
    spool = Spool(tmp_path / "s", max_bytes=1 << 30, instance="gw")
    report = await spool.open()
    assert (spool.batches, report.lost_batches) == (1, 1)
    await spool.append([batch(12)])
    await spool.close()
    (tmp_path / "s" / "index.db").unlink()
    spool = await opened_spool(tmp_path / "s")
    assert await read_batches(spool) == [batch(0), batch(12)]
    await spool.close()


async def test_without_any_witness_the_count_says_at_least(tmp_path: Path) -> None:
    await filled(tmp_path / "s", clean=True)
    (tmp_path / "s" / "index.db").unlink()
    (tmp_path / "s" / "tally").unlink()
    _, report = await reopened(tmp_path / "s")
    assert not report.exact
    assert "at least 0 batches" in report.sentence


async def test_everything_gone_but_the_tally_is_counted(tmp_path: Path) -> None:
    await filled(tmp_path / "s", clean=True)
    for path in (tmp_path / "s").iterdir():
        if path.name != "tally":
            path.unlink()
    report = await verdict(tmp_path / "s")
    assert report.lost_batches == STORED
    assert report.sentence


async def test_a_damaged_segment_is_kept_when_its_readable_batches_are_delivered(tmp_path: Path) -> None:
    await filled(tmp_path / "s", clean=True)
    victim = segments(tmp_path / "s")[-1]
    flip(victim, 400)
    spool = await opened_spool(tmp_path / "s")
    _, lost, _ = await read_all(spool)
    assert lost == 1
    for partition in range(PARTITIONS):
        result = await spool.read("telemetry", partition, 0, 1 << 30)
        spool.remove("telemetry", partition, [stored.id for stored in result.batches])
    await spool.close()
    assert [path.name for path in (tmp_path / "s").glob("*.log*")] == [f"{victim.name}.damaged"]


async def test_damage_while_running_is_repaired_and_told(tmp_path: Path) -> None:
    """The index breaks under a running gateway: made anew from the log, the totals right again."""
    told: list[SpoolReport] = []
    spool = await opened_spool(tmp_path / "s", salvaged=told.append)
    await spool.append([batch(n) for n in range(BATCHES)])
    spool.remove("telemetry", 0, [(await spool.read("telemetry", 0, 0, 1)).batches[0].id])
    database = sqlite3.connect(tmp_path / "s" / "index.db")
    database.execute("DROP TABLE batches")
    database.commit()
    database.close()
    result = await spool.read("telemetry", 1, 0, 1 << 30)
    assert [stored.batch for stored in result.batches] == [batch(n) for n in range(1, BATCHES, PARTITIONS)]
    assert len(told) == 1
    assert "while in use" in told[0].sentence
    assert told[0].lost_batches == 0
    await spool.read("telemetry", 0, 0, 1)
    assert spool.batches == BATCHES - 1
    await spool.close()
    assert (await reopened(tmp_path / "s"))[0] == BATCHES - 1


def newer_index(folder: Path) -> None:
    database = sqlite3.connect(folder / "index.db")
    database.execute("PRAGMA user_version = 2")
    database.close()


def newer_segment(folder: Path) -> None:
    path = segments(folder)[0]
    content = bytearray(path.read_bytes())
    content[8:12] = (2).to_bytes(4, "little")
    path.write_bytes(content)


@pytest.mark.parametrize("newer", [newer_index, newer_segment])
async def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path, newer: Callable[[Path], None]) -> None:
    await filled(tmp_path / "s", clean=True)
    newer(tmp_path / "s")
    before = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir() if path.suffix == ".log"}
    spool = Spool(tmp_path / "s", max_bytes=1 << 30, instance="gw")
    with pytest.raises(SpoolError, match=r"format 2; this gateway knows 1\. A newer gateway wrote it"):
        await spool.open()
    await spool.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir() if path.suffix == ".log"} == before


def test_the_format_is_pinned() -> None:
    """Raise the number when this fails, and read the old one too: an upgrade meets a full spool."""
    assert spool_segments.make_header("gw").hex().startswith("4d4b4753504f4f4c01000000")


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))
