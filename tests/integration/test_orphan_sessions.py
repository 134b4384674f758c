"""Sessions of earlier settings, on a broker with EMQX's rules: drained, ended, and never somebody else's."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.base.lifecycle import StopVerb
from gateway.data_dir.identity import Ending, Identity
from gateway.data_dir.session_registry import SessionRecord
from gateway.mqtt.orphans import Orphans, OrphanSession
from gateway.mqtt.session import Session
from tests.brokers.data_path import MemoryPath, make_settings
from tests.brokers.packets import PINGRESP, Type
from tests.brokers.scripted import ScriptedBroker, publish
from tests.brokers.scripted_link import Link
from tests.waiting import until

FAST = {"reconnect_initial": "20ms", "reconnect_max": "50ms"}


class Worker:
    """As much of a worker as its sessions need: identity, sessions, orphans, on a path whose Kafka is in memory."""

    def __init__(self, directory: Path, path: MemoryPath, sessions: list[Session]) -> None:
        self.path = path
        self.sessions = sessions
        self.orphans = Orphans()
        self.identity = Identity(directory, "gateway", 0, lambda: Ending.CLEAN)
        for session in sessions:
            session._data_path = self.data_path

    @property
    def data_path(self) -> Any:
        return replace(self.path.data_path, registry=self.identity.registry)

    def _orphan(self, record: SessionRecord, turns: asyncio.Semaphore, ended: Callable[[], None]) -> OrphanSession:
        path = self.path
        return OrphanSession(
            record, path.settings, self.data_path, lambda: path.verb, path.defects.append, turns=turns, ended=ended
        )

    async def start(self) -> None:
        await self.identity.start()
        self.orphans.recall(self.identity, [s.record for s in self.sessions], self.path.settings, self._orphan)
        await asyncio.wait_for(
            asyncio.gather(*(session.start() for session in self.sessions), self.orphans.start()), 60
        )

    async def stop(self, verb: StopVerb = StopVerb.RESTART, *, seconds: float = 60.0) -> None:
        self.path.verb = verb
        deadline_ns = time.monotonic_ns() + round(seconds * 1e9)
        parts = [*self.sessions, self.orphans]
        await asyncio.wait_for(asyncio.gather(*(part.stop(deadline_ns) for part in parts)), seconds + 5)
        await self.identity.stop(deadline_ns)


@contextlib.asynccontextmanager
async def life(
    directory: Path, broker: ScriptedBroker, sessions: int, *, verb: StopVerb = StopVerb.RESTART, **mqtt: Any
) -> AsyncIterator[Worker]:
    """One life of a worker, with so many sessions ``gateway-0-<n>``."""
    template = mqtt.pop("template", "gateway-0-{}")
    settings = make_settings(
        mqtt={"addresses": [f"mqtt://127.0.0.1:{broker.port}"], "sessions": max(sessions, 1), **FAST, **mqtt},
        routes=[{"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry", "qos": 2}],
    )
    async with MemoryPath(settings) as path:
        worker = Worker(directory, path, [path.session(n, client_id=template.format(n)) for n in range(sessions)])
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop(verb)
        path.check()


def found(*workers: Worker) -> list[int]:
    return sorted(int(value or b"") for worker in workers for value in worker.path.values)


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_from_four_sessions_to_two_nothing_is_lost_and_none_stays_a_member(protocol: str, tmp_path: Path) -> None:
    async with ScriptedBroker() as broker:
        async with life(tmp_path, broker, 4, protocol=protocol) as before:
            publish(broker, range(100))
            await until(lambda: len(found(before)) == 100, "the first hundred")
        assert len(broker.sessions) == 4
        publish(broker, range(100, 600))  # waits in all four
        async with life(tmp_path, broker, 2, protocol=protocol) as after:
            await asyncio.wait_for(after.orphans.wait_ended(), 60)
            await until(lambda: found(before, after) == list(range(600)), "every message, once")
            assert set(broker.sessions) == {"gateway-0-0", "gateway-0-1"}
            assert [len(members) for members in broker.groups.values()] == [2]
            assert [record.client_id for record in after.identity.registry.records] == ["gateway-0-0", "gateway-0-1"]
            publish(broker, range(600, 700))
            await until(lambda: found(before, after) == list(range(700)), "nothing waits in a session nobody reads")
        assert not broker.dropped


async def test_the_start_does_not_wait_for_orphans(tmp_path: Path) -> None:
    async with ScriptedBroker() as gone:
        async with life(tmp_path, gone, 2, template="old-{}"):
            pass
        await gone.stop()
        async with ScriptedBroker() as broker, life(tmp_path, broker, 1) as after:
            assert after.sessions[0].subscribed
            publish(broker, range(10))
            await until(lambda: found(after) == list(range(10)), "the real session works")
            assert after.orphans.left == 2
        async with ScriptedBroker() as broker, life(tmp_path, broker, 1) as after:
            await gone.start()
            await asyncio.wait_for(after.orphans.wait_ended(), 60)
            assert not gone.sessions, "a later life still knew where they are"


async def test_an_orphan_that_the_broker_has_forgotten_is_forgotten(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker:
        async with life(tmp_path, broker, 2, template="old-{}"):
            pass
        broker.sessions.clear()
        broker.groups.clear()
        async with life(tmp_path, broker, 1) as after:
            await asyncio.wait_for(after.orphans.wait_ended(), 60)
            assert set(broker.sessions) == {"gateway-0-0"}, "asking for one does not leave one behind"
            assert len(after.identity.registry.records) == 1


async def test_a_break_while_an_orphan_is_drained_costs_nothing(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker:
        async with life(tmp_path, broker, 1, template="old-{}"):
            pass
        publish(broker, range(300))
        async with life(tmp_path, broker, 1) as after:
            after.path.producer.holding = True
            await until(lambda: after.path.ledger.received >= 32, "a window of the orphan's")
            for _ in range(3):
                connects = broker.session("old-0").connects
                broker.link("old-0").transport.abort()
                await until(lambda n=connects: broker.session("old-0").connects > n, "it is resumed again")
            assert after.orphans.left == 1
            after.path.producer.release()
            await asyncio.wait_for(after.orphans.wait_ended(), 60)
            assert set(found(after)) == set(range(300))
            assert set(broker.sessions) == {"gateway-0-0"}


async def test_a_stop_while_an_orphan_is_drained_leaves_the_rest_to_the_next_start(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker:
        async with life(tmp_path, broker, 1, template="old-{}"):
            pass
        publish(broker, range(300))
        async with life(tmp_path, broker, 1) as first:
            first.path.producer.holding = True
            await until(lambda: first.path.ledger.received >= 32, "a window of the orphan's")
            asyncio.get_running_loop().call_later(0.05, first.path.producer.release)
        assert "old-0" in broker.sessions
        assert len(broker.session("old-0").acknowledged) == len(found(first)) >= 32, "what was taken was acknowledged"
        async with life(tmp_path, broker, 1) as second:
            await asyncio.wait_for(second.orphans.wait_ended(), 60)
            assert found(first, second) == list(range(300)), "each once"


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_retirement_waits_for_the_orphans_too(qos: int, tmp_path: Path) -> None:
    """With QoS 2 the broker's window is full until PUBCOMP, long after everything is in Kafka."""
    async with ScriptedBroker() as broker:
        async with life(tmp_path, broker, 3, template="old-{}"):
            pass
        publish(broker, range(200), qos=qos)
        async with life(tmp_path, broker, 2, verb=StopVerb.RETIRE) as last:
            pass
        assert found(last) == list(range(200))
        assert not broker.sessions
        assert not last.identity.registry.records


async def test_a_retirement_whose_connection_breaks_leaves_the_session_recorded(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker, life(tmp_path, broker, 1, verb=StopVerb.RETIRE) as worker:
        worker.path.producer.holding = True
        publish(broker, range(20))
        await until(lambda: worker.path.ledger.received == 20, "received, and not acknowledged")
        stopping = asyncio.create_task(worker.stop(StopVerb.RETIRE))
        await until(lambda: not broker.groups, "it has unsubscribed")
        broker.link("gateway-0-0").transport.abort()
        await stopping
        assert [record.client_id for record in worker.identity.registry.records] == ["gateway-0-0"]
        worker.path.producer.release()
        await worker.path.flow.drained()


async def test_a_connection_that_ends_behind_the_last_answer_has_not_ended_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DISCONNECT does not reach the broker, which keeps the session: another connection has to end it."""
    async with ScriptedBroker() as broker:
        async with life(tmp_path, broker, 1, template="old-{}"):
            pass
        send, ended = Link.send, []

        def then_close(link: Link, data: bytes) -> None:
            send(link, data)
            if data == PINGRESP and not ended:
                ended.append(link)
                link.transport.close()

        monkeypatch.setattr(Link, "send", then_close)
        async with life(tmp_path, broker, 1) as after:
            await asyncio.wait_for(after.orphans.wait_ended(), 60)
            assert ended
            assert set(broker.sessions) == {"gateway-0-0"}


async def test_another_client_on_an_orphans_id_is_left_alone(tmp_path: Path) -> None:
    """A second gateway that was given the name: to take it back would end its session, and it ours, for ever."""
    async with ScriptedBroker() as broker:
        async with life(tmp_path / "one", broker, 2):
            pass
        async with life(tmp_path / "two", broker, 2) as user:
            async with life(tmp_path / "one", broker, 0) as other:
                # Both are taken over once, and come back to stay.
                await asyncio.wait_for(other.orphans.wait_ended(), 60)
                await until(lambda: all(session.subscribed for session in user.sessions), "the user has them back")
                assert len(other.identity.registry.records) in {0, 1, 2}
            publish(broker, range(50))
            await until(lambda: set(found(user)) == set(range(50)), "the user gets everything")


async def test_an_id_that_another_slot_uses_is_not_an_orphan(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker:
        async with life(tmp_path, broker, 2):
            pass
        settings = make_settings(mqtt={"addresses": [f"mqtt://127.0.0.1:{broker.port}"], **FAST})
        async with MemoryPath(settings) as path:
            other = Worker(tmp_path, path, [path.session(0, client_id="gateway-0-1")])
            other.identity = Identity(tmp_path, "gateway", 1, lambda: Ending.CLEAN)
            await other.start()
            async with life(tmp_path, broker, 1) as first:
                assert first.orphans.left == 0
                assert broker.session("gateway-0-1").link is not None
            await other.stop()


async def test_an_id_that_another_slot_takes_at_the_same_start_is_left_to_it(tmp_path: Path) -> None:
    """The other slot records it a moment later. MQTT 3.1.1 does not say who ended a connection: the two would take the
    session from each other for ever."""
    async with ScriptedBroker() as broker:
        async with life(tmp_path, broker, 2, protocol="3.1.1"):
            pass
        publish(broker, range(1500))
        settings = make_settings(mqtt={"addresses": [f"mqtt://127.0.0.1:{broker.port}"], "protocol": "3.1.1", **FAST})
        async with MemoryPath(settings) as path, life(tmp_path, broker, 1, protocol="3.1.1") as first:
            first.path.producer.holding = True  # so that draining lasts
            await until(lambda: len(broker.session("gateway-0-1").flying) == 32, "the orphan is drained")
            other = Worker(tmp_path, path, [path.session(0, client_id="gateway-0-1")])
            other.identity = Identity(tmp_path, "gateway", 1, lambda: Ending.CLEAN)
            await other.start()
            await asyncio.wait_for(first.orphans.wait_ended(), 60)
            first.path.producer.release()
            await until(lambda: set(found(first, other)) == set(range(1500)), "nothing is lost")
            assert broker.session("gateway-0-1").connects == 3, "before, as an orphan, and now"
            await other.stop()


async def test_filters_of_earlier_settings_are_left(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker:
        async with life(tmp_path, broker, 1, share_group="first"):
            pass
        publish(broker, range(40))
        async with life(tmp_path, broker, 1, share_group="second") as after:
            await until(
                lambda: broker.session("gateway-0-0").filters.keys() == {"$share/second/devices/#"},
                "the old membership is given up",
            )
            await until(lambda: found(after) == list(range(40)), "what waited under it is delivered")
            types = [packet.type for packet in broker.link("gateway-0-0").log]
            assert types.index(Type.SUBSCRIBE) < types.index(Type.UNSUBSCRIBE), "no message falls between the two"
            await until(
                lambda: [r.filters for r in after.identity.registry.records] == [("$share/second/devices/#",)],
                "and struck out",
            )
        async with life(tmp_path, broker, 1, share_group="second"):
            assert Type.UNSUBSCRIBE not in [packet.type for packet in broker.link("gateway-0-0").log]


async def test_without_persistence_nothing_is_recorded_and_what_was_is_superseded(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker:
        async with life(tmp_path, broker, 1):
            pass
        async with life(tmp_path, broker, 1, persistent=False) as after:
            assert not after.identity.registry.records
            assert after.orphans.left == 0
        assert not broker.sessions


async def test_sessions_at_a_former_broker_under_the_same_ids_are_said(tmp_path: Path) -> None:
    async with ScriptedBroker() as former, ScriptedBroker() as broker:
        async with life(tmp_path, former, 1):
            pass
        async with life(tmp_path, broker, 1) as after:
            assert after.orphans.left == 0, "one client id cannot be resumed at two brokers"
            (record,) = after.identity.registry.records
            assert record.addresses == (f"mqtt://127.0.0.1:{broker.port}",)
