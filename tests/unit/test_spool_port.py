"""The spool's store on disk and the one in memory obey the same suite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.spool.spool import Spool
from tests.spool_port import SpoolPort
from tests.unit.fake_spool import FakeDisk, FakeSpool

LIMIT = 100_000


class TestFakeSpool(SpoolPort):
    @pytest.fixture
    def store(self) -> FakeSpool:
        return FakeSpool(FakeDisk(), max_bytes=LIMIT)


class TestSpool(SpoolPort):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Spool]:
        spool = Spool(tmp_path / "spool", max_bytes=LIMIT, instance="gw")
        await spool.open()
        yield spool
        await spool.close()
