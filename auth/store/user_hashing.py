"""Hashing the readable passwords of a file of users, on all cores, and saying how far that is."""

from __future__ import annotations

__all__ = ["hash_entries"]

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from auth.passwords import hash_argon2id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from auth.passwords import Argon2Cost
    from auth.store.user_entries import Entry

_SAY_FROM_S: Final = 2.0  # what takes less needs no word
_SAY_EVERY_S: Final = 5.0


def hash_entries(
    entries: Sequence[Entry],
    cost: Argon2Cost,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Entry]:
    """The users with their readable passwords hashed. Blocks: some 20 ms of a core each, with the default cost.

    ``say`` is told how long it takes as soon as that is known, and then how far it is."""
    plain = sum(entry.plain is not None for entry in entries)
    if not plain:
        return list(entries)

    def hashed(entry: Entry) -> Entry:
        if entry.plain is None:
            return entry
        return replace(entry, user=replace(entry.user, password=hash_argon2id(entry.plain, cost)), plain=None)

    cores = os.cpu_count() or 1
    began = said = clock()
    done: list[Entry] = []
    ready = 0
    pool = ThreadPoolExecutor(cores)
    try:
        for before, entry in zip(entries, pool.map(hashed, entries), strict=True):
            done.append(entry)
            ready += before.plain is not None
            now = clock()
            if ready == 1 and before.plain is not None:
                whole_s = (now - began) * plain / cores
                if whole_s >= _SAY_FROM_S:
                    say(f"{plain:,} readable passwords are hashed with argon2id: about {whole_s:,.0f} s.")
            if now - said >= _SAY_EVERY_S:
                said = now
                say(f"{ready:,} of {plain:,} passwords are hashed")
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C nobody waits for the rest
    return done
