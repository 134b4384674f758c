"""gateway spool: what is stored is shown, exported and imported; never twice, never another's by accident."""

import asyncio
import contextlib
import errno
import json
import os
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.spool.record import SpoolBatch
from bridge.spool.spool import Spool, spool_path
from config.errors import ExitStatus
from gateway.cli.main import main
from tests.command_line import Cli

BATCHES = 7


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with settings; the spool's folder in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gateway.toml").write_text('instance = "site-a"\n')
    return spool_path(Path("data"), 0)


def batch(number: int) -> SpoolBatch:
    data = bytes([number]) * 1000
    return SpoolBatch("tele", number % 2, "räute", 1, number == 3, 4, (1, 2), 1_700_000_000_000 + number, data)


def fill(folder: Path, instance: str = "site-a") -> None:
    async def run() -> None:
        spool = Spool(folder, max_bytes=1 << 30, instance=instance)
        await spool.open()
        await spool.append([batch(number) for number in range(BATCHES)])
        await spool.close()

    asyncio.run(run())


def damage(folder: Path) -> None:
    """One batch cannot be read."""
    segment = next(folder.glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[1500] ^= 1
    segment.write_bytes(content)


def stored(folder: Path, instance: str) -> list[SpoolBatch]:
    async def run() -> list[SpoolBatch]:
        spool = Spool(folder, max_bytes=1 << 30, instance=instance)
        await spool.open()
        found = [await spool.read(topic, partition, 0, 1 << 30) for topic, partition in sorted(spool.partitions())]
        await spool.close()
        return [one.batch for result in found for one in result.batches]

    return asyncio.run(run())


def test_status_of_nothing(folder: Path, cli: Cli) -> None:
    assert "nothing was ever spooled" in cli("spool", "status").out
    assert json.loads(cli("spool", "status", "--json").out)["exists"] is False
    assert not folder.exists(), "looking must not make anything"


def test_status_shows_what_waits(folder: Path, cli: Cli) -> None:
    fill(folder)
    text = cli("spool", "status", "--verify").out
    assert "7 batches with 28 messages" in text
    assert "instance site-a, not in use" in text
    assert "All batches can be read." in text
    status = json.loads(cli("spool", "status", "--json").out)
    assert (status["batches"], status["messages"], status["closed_properly"]) == (7, 28, True)
    assert [(one["topic"], one["partition"], one["batches"]) for one in status["partitions"]] == [
        ("tele", 0, 4),
        ("tele", 1, 3),
    ]
    assert status["partitions"][0]["oldest_ms"] == 1_700_000_000_000


def test_status_of_a_spool_in_use(folder: Path, cli: Cli) -> None:
    async def run() -> None:
        spool = Spool(folder, max_bytes=1 << 30, instance="site-a")
        await spool.open()
        await spool.append([batch(1)])
        await spool.remember_topic("tele", 2)  # the index is written by then
        assert "1 batches with 4 messages" in (text := (await asyncio.to_thread(cli, "spool", "status")).out)
        assert "in use by process" in text
        for command, status in (["status", "--verify"], ExitStatus.FAILED), (["export", "x"], ExitStatus.CONFIG):
            error = (await asyncio.to_thread(partial(cli, "spool", *command, status=status))).err
            assert "in use by process" in error
            assert "top the gateway" in error or "Stop that gateway" in error
        await spool.append([batch(3)])
        assert spool.batches == 2
        await spool.close()

    asyncio.run(run())


def test_verify_finds_what_cannot_be_read(folder: Path, cli: Cli) -> None:
    fill(folder)
    damage(folder)
    told = cli("spool", "status", "--verify", status=ExitStatus.MISSING_MESSAGES).out
    assert "UNREADABLE: 1 batches with 4 messages of tele/1" in told


def test_a_spool_without_its_index_is_not_called_empty(folder: Path, cli: Cli) -> None:
    """The gateway's own advice for an index that cannot be opened is to delete it."""
    fill(folder)
    (folder / "index.db").unlink()
    assert "their index is missing" in cli("spool", "status", status=ExitStatus.CONFIG).err
    assert "7 batches with 28 messages" in cli("spool", "export", "out.spool").out


def test_only_the_index_is_vouched_for_after_a_kill(folder: Path, cli: Cli) -> None:
    fill(folder)
    with contextlib.closing(sqlite3.connect(folder / "index.db")) as index, index:
        index.execute("DELETE FROM facts WHERE key = 'clean'")
    assert "All batches of the index can be read." in cli("spool", "status", "--verify").out


@pytest.mark.parametrize("how", ["changed", "unreadable"])
def test_an_export_says_what_it_lacks(how: str, folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    fill(folder)
    if how == "changed":
        damage(folder)
        lost = (1, 4)
    else:

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr("bridge.spool.segments.Segments.read", fail)
        cli("spool", "status", "--verify", status=ExitStatus.MISSING_MESSAGES)
        lost = (7, 28)
    told = json.loads(cli("spool", "export", "out.spool", "--remove", "--json", status=ExitStatus.MISSING_MESSAGES).out)
    assert (told["batches"], told["lost_batches"], told["lost_messages"]) == (7 - lost[0], *lost)


def test_an_exported_file_is_durable_with_its_name_before_the_spool_is_emptied(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder)
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr("gateway.cli.records.spool._empty", lambda _store: synced.append("emptied"))
    cli("spool", "export", "out.spool", "--remove")
    assert synced[: synced.index("emptied")][-2:] == [str(tmp_path / "out.spool"), str(tmp_path)]
    assert (tmp_path / "out.spool").stat().st_mode & 0o007 == 0, "nor is the spool readable to everybody"


def test_an_export_is_imported_once(cli: Cli, folder: Path, tmp_path: Path) -> None:
    fill(folder)
    before = stored(folder, "site-a")
    assert "the spool still holds them" in cli("spool", "export", "out.spool").out
    assert "exists already" in cli("spool", "export", "out.spool", status=ExitStatus.FAILED).err
    (tmp_path / "b.toml").write_text('instance = "site-b"\ndata_dir = "b"\n')
    there = ["--config", "b.toml", "--json"]
    told = cli("spool", "import", "out.spool", *there, status=ExitStatus.FAILED).err
    assert "from instance 'site-a', this is 'site-b'" in told
    meant = ["spool", "import", "out.spool", "--from-instance", "site-a", *there]
    assert json.loads(cli(*meant).out) == {"batches": 7, "messages": 28, "file": "out.spool", "imported_before": 0}
    assert json.loads(cli(*meant).out)["batches"] == 0
    assert stored(spool_path(Path("b"), 0), "site-b") == before


def test_the_spools_of_other_workers_are_not_passed_over(cli: Cli, folder: Path) -> None:
    fill(folder)
    fill(spool_path(Path("data"), 1))
    fill(spool_path(Path("data"), 3))
    for command in (["status"], ["export", "out.spool"]):
        assert "worker 0 alone. Others have spools, too (1, 3): --worker N." in cli("spool", *command).err
        to = [f"{command[1]}.1"] if command[1:] else []
        assert cli("spool", *command[:1], *to, "--worker", "1").err == ""


def test_what_one_worker_has_imported_another_does_not(folder: Path, cli: Cli) -> None:
    Path("gateway.toml").write_text('instance = "site-a"\nworkers = 2\n')
    fill(folder)
    cli("spool", "export", "out.spool", "--remove")
    cli("spool", "import", "out.spool")
    said = cli("spool", "import", "out.spool", "--worker", "1", status=ExitStatus.FAILED).err
    assert f"7 of the 7 batches of out.spool are in the spool {folder.absolute()} already" in said
    assert stored(spool_path(Path("data"), 1), "site-a") == []


def test_nothing_is_stored_where_no_worker_will_find_it(folder: Path, cli: Cli) -> None:
    fill(folder)
    cli("spool", "export", "out.spool")
    Path("gateway.toml").write_text('instance = "site-a"\nworkers = 2\n')
    assert "nobody would deliver" in cli("spool", "import", "out.spool", "--worker", "9", status=ExitStatus.FAILED).err
    assert not spool_path(Path("data"), 9).exists()
    cli("spool", "import", "out.spool", "--worker", "1")


def test_an_interrupted_import_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    fill(folder)
    before = stored(folder, "site-a")
    assert json.loads(cli("spool", "export", "out.spool", "--remove", "--json").out)["removed"] is True
    assert stored(folder, "site-a") == []
    monkeypatch.setattr("gateway.cli.records.spool._CHUNK_BYTES", 1)
    from bridge.spool.store import Store

    real, left = Store.append, 3

    def append(self: Store, calls: list[list[SpoolBatch]]) -> list[list[int]]:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return real(self, calls)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", append)
        patch.setattr("signal.raise_signal", lambda _signal: None)
        patch.setattr("signal.signal", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            main(["spool", "import", "out.spool"])
    assert len(stored(folder, "site-a")) == 3
    told = cli("spool", "import", "out.spool").out
    assert "4 batches with 16 messages are stored; 3 batches were imported before" in told
    assert stored(folder, "site-a") == before


@pytest.mark.parametrize(("change", "says"), [
    (lambda text: text[: text.rindex('{"end"')], "its end is missing"),
    (lambda text: text.replace('"qos":1', '"qos":0', 1), "Line 2 of out.spool has changed"),
    (lambda text: "hello\n", "Line 1 of out.spool has changed, or is no line of an export"),
    (lambda text: "", "Line 1"),
], ids=["cut", "changed", "something else", "empty"])  # fmt: skip
def test_a_damaged_export_is_refused_before_anything_is_kept(folder: Path, change: Any, says: str, cli: Cli) -> None:
    fill(folder)
    cli("spool", "export", "out.spool", "--remove")
    file = Path("out.spool")
    file.write_text(change(file.read_text()))
    assert says in cli("spool", "import", "out.spool", status=ExitStatus.FAILED).err
    assert stored(folder, "site-a") == []


def test_an_import_that_does_not_fit_is_refused(cli: Cli, folder: Path) -> None:
    fill(folder)
    cli("spool", "export", "out.spool")
    Path("gateway.toml").write_text('instance = "site-a"\n[spool]\nmax_bytes = "2MiB"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bridge.spool.record.SpoolBatch.stored_bytes", 1 << 20)
        assert "spool.max_bytes = 2097152" in cli("spool", "import", "out.spool", status=ExitStatus.FAILED).err
    assert len(stored(folder, "site-a")) == BATCHES
