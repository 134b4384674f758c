"""Hashes the readable passwords of a file of users on all cores, with reports of progress."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from auth.passwords import Argon2Cost, hash_argon2id
from auth.store.user_entries import Entry

_SAY_FROM_S: Final = 2.0  # shorter work is not reported
_SAY_EVERY_S: Final = 5.0


def hash_entries(
    entries: Sequence[Entry],
    cost: Argon2Cost,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Entry]:
    """The users with their readable passwords hashed. Blocks: at default cost some 20 ms of a core for each user.

    ``say`` receives the expected time as soon as it is known, then the progress.
    """
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
        pool.shutdown(cancel_futures=True)  # after Ctrl-C the rest is dropped
    return done
