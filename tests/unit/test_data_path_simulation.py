"""The whole data path under random misfortune: whatever happens, in whatever order, nothing acknowledged is lost.

``GATEWAY_SIMULATIONS=1000`` runs more seeds than the suite does.
"""

from __future__ import annotations

import os

import pytest

from tests.unit.manual_time import manual_time
from tests.unit.simulation import DEAD_LETTERS, World

SEEDS = int(os.environ.get("GATEWAY_SIMULATIONS", "30"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_goes_wrong_nothing_acknowledged_is_lost_and_the_account_balances(seed: int) -> None:
    @manual_time
    async def run() -> None:
        await World(seed).run(400)

    run()


@pytest.mark.parametrize("seed", range(3))
def test_where_nothing_goes_wrong_every_record_is_there_exactly_once(seed: int) -> None:
    @manual_time
    async def run() -> None:
        world = World(seed, misfortune=False)
        await world.run(600)
        assert world.copies() == 0
        assert world.gateway.observer.incarnations == [1]
        assert world.gateway.ledger.returned == 0
        fates = [message.fate for message in world.messages]
        assert world.gateway.ledger.filtered == fates.count(None)
        assert world.gateway.ledger.dead_lettered == fates.count(DEAD_LETTERS)

    run()
