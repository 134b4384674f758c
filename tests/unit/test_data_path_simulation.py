"""The whole data path under random misfortune: whatever happens, in whatever order, nothing acknowledged is lost.

``GATEWAY_SIMULATIONS=1000`` runs more seeds than the suite does.
"""

import asyncio
import os
from typing import Any
from unittest.mock import patch

import pytest

from bridge.produce.batch import ON_DISK_NEXT, Batch
from bridge.produce.partitions import BACKLOG_NEXT, Backlog, BacklogState
from bridge.produce.sender import SENDER_NEXT, Sender, SenderState
from tests.unit.manual_time import manual_time
from tests.unit.simulation import DEAD_LETTERS, World

SEEDS = int(os.environ.get("GATEWAY_SIMULATIONS", "30"))


@pytest.mark.parametrize("seed", range(SEEDS))
@manual_time
async def test_whatever_goes_wrong_nothing_acknowledged_is_lost_and_the_account_balances(seed: int) -> None:
    await World(seed).run(400)


@pytest.mark.parametrize("seed", range(3))
@manual_time
async def test_where_nothing_goes_wrong_every_record_is_there_exactly_once(seed: int) -> None:
    world = World(seed, misfortune=False)
    await world.run(600)
    assert (world.copies(), world.gateway.observer.incarnations, world.gateway.ledger.returned) == (0, [1], 0)
    fates = [message.fate for message in world.messages]
    assert world.gateway.ledger.filtered == fates.count(None)
    assert world.gateway.ledger.dead_lettered == fates.count(DEAD_LETTERS)


def test_a_seed_is_the_same_story_each_time() -> None:
    ends: list[tuple[Any, float]] = []

    @manual_time
    async def run(seed: int) -> None:
        world = World(seed)
        await world.run(400)
        ends.append((world.random.getstate(), asyncio.get_running_loop().time()))

    for seed in (4, 4, 5, 5, 5):
        run(seed)
    assert ends == [ends[0]] * 2 + [ends[2]] * 3


def test_states_change_as_their_tables_say_and_every_change_happens() -> None:
    seen: dict[type, set[tuple[Any, Any]]] = {Batch: set(), Backlog: set(), Sender: set()}

    def recorded(owner: type, name: str, attribute: str) -> Any:
        enter = getattr(owner, name)

        def enter_recorded(self: Any, state: Any, *more: Any) -> None:
            seen[owner].add((getattr(self, attribute), state))
            enter(self, state, *more)

        return patch.object(owner, name, enter_recorded)

    @manual_time
    async def run(seed: int) -> None:
        await World(seed).run(400)

    new, sending, replacing, closed = SenderState
    # The others are rare here: an end before Kafka has answered, a second close; a slow disk (test_slow_disk.py).
    often = {
        Batch: changes(ON_DISK_NEXT),
        Backlog: changes(BACKLOG_NEXT) - {(BacklogState.DRAINS, BacklogState.SPOOLS)},
        Sender: {(new, sending), (sending, replacing), (replacing, sending), (sending, closed)},
    }
    tables = {Batch: changes(ON_DISK_NEXT), Backlog: changes(BACKLOG_NEXT), Sender: changes(SENDER_NEXT)}
    with recorded(Batch, "enter", "disk"), recorded(Backlog, "enter", "state"), recorded(Sender, "_enter", "_state"):
        for seed in range(60):
            run(seed)
            if all(often[owner] <= seen[owner] for owner in often):
                break
    for owner, table in tables.items():
        assert often[owner] <= seen[owner] <= table


def changes(table: dict[Any, set[Any]]) -> set[tuple[Any, Any]]:
    return {(state, following) for state, others in table.items() for following in others}
