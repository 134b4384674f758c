"""The scripted broker keeps EMQX's rules: what gateways are tested against must itself be what it says."""

import asyncio

import pytest

from tests.brokers.packets import Message, Type
from tests.brokers.raw import RawClient
from tests.brokers.scripted import ScriptedBroker, publish
from tests.brokers.scripted_rules import Rules
from tests.waiting import until

SHARE = "$share/group/devices/#"


def numbers(client: RawClient) -> list[int]:
    return [int(message.payload) for message, _, _ in client.received]


async def test_the_queue_holds_1000_and_drops_the_oldest_though_devices_were_acknowledged() -> None:
    async with ScriptedBroker() as broker, RawClient(broker.port, "c") as client, RawClient(broker.port, "d") as device:
        await client.subscribe(SHARE)
        publish(broker, range(32 + 1000))
        assert not broker.dropped
        assert await device.publish("devices/d", b"1032") == 0, "acknowledged as if all were well"
        assert [message.payload for message in broker.dropped] == [b"32"], "the oldest of the queue, not of the window"
        for packet_id in range(1, 33):
            client.acknowledge(packet_id)
        await client.messages(64)
        await client.settled()
        assert numbers(client) == [*range(32), *range(33, 65)]


async def test_an_absent_members_share_waits_for_it_and_what_was_unacknowledged_comes_first_with_dup() -> None:
    async with ScriptedBroker() as broker, RawClient(broker.port, "b") as other:
        await other.subscribe(SHARE)
        async with RawClient(broker.port, "a") as client:
            await client.subscribe(SHARE)
            publish(broker, range(4))
            await client.messages(2)
            await other.messages(2)
        await until(lambda: broker.session("a").link is None, "it is away")
        publish(broker, range(4, 8))
        await other.messages(4)
        await other.settled()
        assert len(other.received) == 4, "members are chosen whether or not they are connected"
        async with RawClient(broker.port, "a") as client:
            assert client.session_present
            await client.messages(4)
            first = [(int(message.payload), dup) for message, _, dup in client.received]
            assert [dup for _, dup in first] == [True, True, False, False]
            assert sorted(number for number, _ in first) == sorted({*range(8)} - {*numbers(other)})


async def test_a_session_that_expires_gives_what_it_held_to_the_others_behind_newer_messages() -> None:
    async with ScriptedBroker() as broker, RawClient(broker.port, "b") as other:
        await other.subscribe(SHARE, 2)
        async with RawClient(broker.port, "a", expiry=1, receive_maximum=2) as client:
            await client.subscribe(SHARE, 2)
            publish(broker, range(8))
            await client.messages(2)
        await until(lambda: "a" not in broker.sessions, "its session expires")
        await other.messages(8)
        seen = numbers(other)
        assert sorted(seen) == list(range(8)), "window and queue have moved"
        assert seen != sorted(seen), "out of order"
        assert not any(dup for _, _, dup in other.received)
        assert not broker.lost_messages


async def test_a_session_that_comes_back_in_time_does_not_expire() -> None:
    async with ScriptedBroker() as broker:
        async with RawClient(broker.port, "a", expiry=2) as client:
            await client.subscribe(SHARE)
        await until(lambda: broker.session("a").link is None, "it is away")
        async with RawClient(broker.port, "a", expiry=2) as client:
            assert client.session_present
            began = asyncio.get_running_loop().time()
            await until(lambda: asyncio.get_running_loop().time() > began + 2.2, "longer than the expiry")
            await client.settled()
            assert "a" in broker.sessions


async def test_the_last_members_messages_go_with_it() -> None:
    async with ScriptedBroker() as broker:
        async with RawClient(broker.port, "a", expiry=0) as client:
            await client.subscribe(SHARE)
            publish(broker, range(3))
            await client.messages(3)
        await until(lambda: len(broker.lost_messages) == 3, "nobody is left to take them")


async def test_a_qos_2_message_under_way_is_not_sent_to_another_member() -> None:
    async with ScriptedBroker() as broker, RawClient(broker.port, "b") as other:
        async with RawClient(broker.port, "a", expiry=0, receive_maximum=2) as client:
            await client.subscribe(SHARE, 2)
            publish(broker, range(4), qos=2)
            await client.messages(2)
            await other.subscribe(SHARE, 2)
        await other.messages(2)
        assert numbers(other) == [2, 3], "the queue moves"
        assert [message.payload for message in broker.lost_messages] == [b"0", b"1"]


@pytest.mark.parametrize("how", ["disconnect", "kick"])
async def test_ending_a_session_loses_what_is_unacknowledged(how: str) -> None:
    async with ScriptedBroker() as broker, RawClient(broker.port, "b") as other:
        await other.subscribe(SHARE)
        async with RawClient(broker.port, "a") as client:
            await client.subscribe(SHARE)
            publish(broker, range(6))
            await client.messages(3)
            if how == "disconnect":
                client.disconnect(expiry=0)
            else:
                broker.kick("a")
                assert (await client.answer(Type.DISCONNECT)).body[0] == 0x98
            await client.closed.wait()
        await other.messages(3)
        await other.settled()
        assert len(other.received) == 3
        assert len(broker.lost_messages) == 3
        assert "a" not in broker.sessions


async def test_a_slow_start_gives_one_message_until_the_first_acknowledgement() -> None:
    async with ScriptedBroker(Rules(slow_start=True)) as broker, RawClient(broker.port, "a") as client:
        await client.subscribe(SHARE)
        publish(broker, range(50))
        await client.settled()
        assert numbers(client) == [0]
        client.acknowledge(1)
        await client.messages(33)
        await client.settled()
        assert numbers(client) == list(range(33)), "then the window"


async def test_a_connection_that_takes_nothing_is_ended() -> None:
    async with ScriptedBroker(Rules(send_timeout_s=0.5)) as broker, RawClient(broker.port, "a") as client:
        await client.subscribe("devices/#", 0)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            publish(broker, range(1), qos=0)
            broker.publish(Message("devices/x", bytes(100_000), 0))
        await until(lambda: broker.blocked == 1, "the broker gives it up")
        await until(lambda: broker.session("a").link is None, "its connection is gone, its session is not")
        client.writer.transport.abort()


async def test_a_mailbox_that_does_not_overflow_is_delivered_in_order() -> None:
    async with ScriptedBroker(Rules(max_mailbox=10)) as broker, RawClient(broker.port, "a") as client:
        await client.subscribe(SHARE)
        broker.stall("a")
        publish(broker, range(10))
        await client.settled()
        assert not client.received
        broker.resume("a")
        await client.messages(10)
        assert numbers(client) == list(range(10))


async def test_a_client_that_takes_nothing_fills_its_sessions_mailbox() -> None:
    rules = Rules(max_mailbox=50, send_timeout_s=60)
    async with ScriptedBroker(rules) as broker, RawClient(broker.port, "a") as client:
        await client.subscribe("devices/#", 0)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(1000):
            broker.publish(Message("devices/x", bytes(100_000), 0))
            if "a" not in broker.sessions:
                break
            await asyncio.sleep(0)
        assert "a" not in broker.sessions
        client.writer.transport.abort()


async def test_dead_members_of_a_killed_node_keep_their_share_until_it_is_forced_to_leave() -> None:
    async with ScriptedBroker(nodes=2) as broker:
        first, second = broker.nodes
        async with RawClient(first.port, "a") as client, RawClient(first.port, "d") as device:
            await client.subscribe(SHARE)
            async with RawClient(second.port, "b") as other:
                await other.subscribe(SHARE)
                await broker.kill_node(second)
                await other.closed.wait()
            assert [await device.publish("devices/d", b"%d" % number) for number in range(10)] == [0] * 10
            await client.messages(5)
            assert len(broker.vanished) == 5, "half of it goes to nobody, with PUBACK 0"
            async with RawClient(first.port, "b") as other:
                assert not other.session_present
                await other.subscribe(SHARE)
                publish(broker, range(10, 19))
                assert len(broker.vanished) == 8, "a third: the dead one stays beside it"
                broker.force_leave(second)
                publish(broker, range(19, 29))
                assert len(broker.vanished) == 8


async def test_a_node_that_returns_leaves_no_dead_members() -> None:
    async with ScriptedBroker(nodes=2) as broker:
        first, second = broker.nodes
        async with RawClient(first.port, "a") as client:
            await client.subscribe(SHARE)
            async with RawClient(second.port, "b") as other:
                await other.subscribe(SHARE)
                await broker.kill_node(second)
            await broker.start_node(second)
            publish(broker, range(4))
            await client.messages(4)
            assert not broker.vanished
