"""Opens a spool, and rebuilds its index. A damaged index is renamed and kept."""

import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable
from pathlib import Path

from bridge.errors import SpoolError, SpoolWriteError
from bridge.spool.files import Files, Topics, put_aside
from bridge.spool.index import Index, is_damage, is_full
from bridge.spool.recovery import BUILDING, Loading, Losses, SpoolReport
from bridge.spool.segments import HEADER_BYTES, Segments, check_header
from bridge.spool.state import State
from bridge.spool.tally import Tally
from config.error_words import words


def open_state(folder: Path, instance: str, step: Callable[[], None]) -> tuple[State, SpoolReport]:
    """Open a spool and repair what a crash or damage left. Blocks; raises SpoolError. ``step`` is called again
    and again while the log is read, so that a long start shows progress."""
    files = Files(folder)
    try:
        files.lock()
        try:
            return _open_locked(files, instance, step)
        except (sqlite3.Error, OSError) as error:
            if not (is_full(error) and files.free_reserve()):
                raise
            return _open_locked(files, instance, step)
    except (sqlite3.Error, OSError) as error:
        files.unlock()
        if is_full(error):
            raise SpoolWriteError(
                f"The spool in {folder.absolute()} cannot be opened ({words(error)}): its disk is full, or fails. Make "
                "room, and delete nothing of the spool: what it holds was acknowledged and exists nowhere else."
            ) from error
        if isinstance(error, OSError):
            raise SpoolError(
                f"The spool in {folder.absolute()} cannot be opened ({words(error)}). Its folder "
                "must be readable and writable."
            ) from error
        raise SpoolError(
            f"The spool's index {files.index.absolute()} cannot be opened ({words(error)}). The index may be deleted "
            "while the gateway is stopped: it is made anew from the log."
        ) from error
    except BaseException:
        files.unlock()
        raise


def _open_locked(files: Files, instance: str, step: Callable[[], None]) -> tuple[State, SpoolReport]:
    segments = Segments(files.folder, instance)
    losses = Losses()
    broken = set()
    numbers = [number for number in segments.numbers() if segments.size(number) >= HEADER_BYTES]
    for number in numbers:
        if not check_header(segments.path(number), instance):
            broken.add(number)
            losses.said.append(f"the first bytes of segment {segments.path(number).name} have changed")
    topics = Topics(files.topics)
    if topics.damaged:
        losses.said.append(f"{files.topics.name} could not be read, so Kafka must be asked for its topics again")
    existed = files.index.exists()
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(segments.close)
        index = _sound_index(files, instance, certainly_ours=len(broken) < len(numbers))
        if index is not None:
            on_failure.callback(_close, index)
        tally = Tally(files.tally)
        on_failure.callback(tally.close)
        if index is not None:
            if not existed and numbers:
                losses.said.append("its index was missing and was made anew from the log")
            found = dataclasses.replace(losses, said=[*losses.said])
            state = State(files, instance, segments, topics, tally, index, damaged=set(broken))
            try:
                Loading(state, found, rebuilt=not existed, step=step).load(verify=bool(broken))
            except sqlite3.Error as error:
                _close(index)
                if not is_damage(error):
                    raise
            else:
                on_failure.pop_all()
                return state, found.report(state)
        losses.put_aside.append(put_aside(files.index))
        losses.said.append("its index could not be read and was made anew from the log")
        index = Index(files.index, instance)
        on_failure.callback(_close, index)
        state = State(files, instance, segments, topics, tally, index, damaged=broken)
        Loading(state, losses, rebuilt=True, step=step).load(verify=False)
        on_failure.pop_all()
        return state, losses.report(state)


def _sound_index(files: Files, instance: str, *, certainly_ours: bool) -> Index | None:
    """The index, or None when it is damaged. Raises SpoolError for another owner, unless intact segments name this
    instance (``certainly_ours``), and sqlite3.Error when the disk fails."""
    try:
        index = Index(files.index, instance)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return None
    try:
        owner = index.fact("instance")
        clean = index.fact("clean")
        if owner == instance and clean != BUILDING and (clean == "yes" or index.sound()):
            return index
    except sqlite3.Error as error:
        if not is_damage(error):
            _close(index)
            raise
        owner = instance
    _close(index)
    if owner != instance and not certainly_ours:
        raise SpoolError(
            f"The spool in {files.folder.absolute()} belongs to instance {owner!r}, not {instance!r}. Set data_dir or "
            "instance right; to deliver what another instance left, use gateway spool export and import."
        )
    return None


def _close(index: Index) -> None:
    with contextlib.suppress(sqlite3.Error):
        index.close()


def rebuild(state: State, step: Callable[[], None]) -> SpoolReport:
    """Rebuild the damaged index of a running spool from its log. ``step`` is called as by ``open_state``.

    Raises OSError and sqlite3.Error when the disk fails. The call may then be repeated; nothing else is possible.
    """
    losses = Losses(said=["its index was damaged while in use and was made anew from the log"])
    _close(state.index)
    state.log.close()
    state.log.uncut.clear()  # refused batches that could not be cut are in the new index: they stay
    if state.files.index.exists():
        losses.put_aside.append(put_aside(state.files.index))
    state.partitions.clear()
    state.live.clear()
    try:
        state.index = Index(state.files.index, state.instance)
        Loading(state, losses, rebuilt=True, step=step).load(verify=False)
    except (OSError, sqlite3.Error):
        _close(state.index)
        state.files.remove_index()  # it is not whole
        raise
    return losses.report(state)
