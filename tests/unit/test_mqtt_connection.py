"""One connection: acknowledged in order once Kafka has it, flushed before the broker stalls, alive or ended in time."""

import asyncio
import contextlib
import time

import pytest
from structlog.testing import capture_logs

from bridge.produce.dispatch import SLOW
from gateway.base.metrics import DISCONNECTS
from gateway.mqtt.ingest import Ingest
from tests.brokers import packets
from tests.brokers.packets import Packet, Type, ids
from tests.brokers.rig import Rig, make_rig
from tests.waiting import until


def qos1(rig: Rig, number: int, topic: str = "devices/1") -> bytes:
    return rig.publish(topic, b"%d" % number, qos=1, packet_id=number)


# --- the window ---
async def test_acknowledgements_leave_in_the_order_of_arrival_whatever_order_the_partitions_answer_in() -> None:
    async with make_rig(holding=True) as rig:
        partitions = {}
        for number in range(1, 200):  # topics of three different partitions
            topic = f"devices/{number}"
            slot = rig.path.dispatcher.entry(2, topic.encode())[0]
            partitions.setdefault(slot.queue.partition, topic)
        first, second, third = list(partitions.values())[:3]
        for number, topic in enumerate((first, second, third), 1):
            await rig.deliver(qos1(rig, number, topic))
        rig.path.producer.take(b"3")
        await rig.settle()
        assert rig.answers() == [], "3 is in Kafka, but 1 and 2 come before it [MQTT-4.6.0-2]"
        rig.path.producer.take(b"1")
        await rig.settle()
        assert ids(rig.answers()) == [1]
        rig.path.producer.take(b"2")
        await rig.settle()
        assert ids(rig.answers()) == [2, 3]
        rig.path.check()


async def test_what_is_unacknowledged_when_a_connection_ends_is_returned_and_not_acknowledged_later() -> None:
    async with make_rig(holding=True) as rig:
        await rig.deliver(qos1(rig, 1), qos1(rig, 2))
        rig.send(qos1(rig, 3))  # read, not flushed
        old = rig.connection
        rig.peer.close()
        old.read()
        rig.path.check()  # in the very step in which the connection ended
        assert old.returned == 3
        old.close()
        rig.connect()
        rig.send(qos1(rig, 1), qos1(rig, 2), qos1(rig, 3))
        await rig.release()
        assert ids(rig.answers()) == [1, 2, 3]
        assert old.acknowledged == 0
        snapshot = rig.path.ledger.snapshot()
        assert (snapshot.received, snapshot.returned, snapshot.delivered) == (6, 3, 3)
        rig.path.check()


async def test_messages_in_front_of_the_end_of_the_stream_are_taken_and_counted() -> None:
    async with make_rig() as rig:
        rig.peer.send(qos1(rig, 1) + rig.publish("devices/1", b"qos 0"))
        rig.hang_up()
        await rig.settle()
        assert rig.path.values.count(b"1") == 1
        assert b"qos 0" in rig.path.values, "a broker has forgotten QoS 0: it must not be lost here"
        rig.path.check()


async def test_the_window_is_flushed_before_the_broker_stalls() -> None:
    """Whatever the linger: the broker sends no more than the window, so nobody would end the wait."""
    async with make_rig(window=4, flow={"linger_max": "10s", "read_pacing_max": "1s"}) as rig:
        rig.path.flow.rhythm.adopt(3_600_000_000_000, 3_600_000_000_000)  # no flush is due by itself
        for start in range(1, 41, 2):
            rig.send(qos1(rig, start), qos1(rig, start + 1))
            await until(lambda: rig.connection.unacked <= 2, "the window is half free again")


async def test_a_window_the_broker_does_not_tell_of_is_found_out() -> None:
    """MQTT 3.1.1 has no receive maximum, and HiveMQ sends one message until it sees an acknowledgement."""
    async with make_rig(mqtt={"protocol": "3.1.1"}, flow={"linger_max": "10s", "read_pacing_max": "1s"}) as rig:
        next_id, began = 1, time.monotonic()
        for burst in [1, 1, 20, 20, 20, 20]:
            rig.send(*(qos1(rig, next_id + n) for n in range(burst)))
            next_id += burst
            await until(lambda: not rig.connection.unacked, f"a window of {burst} is answered")
        assert time.monotonic() - began < 25, "a broker with a small window waited for the linger"


async def test_a_message_that_comes_alone_is_acknowledged_at_once() -> None:
    waited_s = 0.0
    for _ in range(40):
        async with make_rig(flow={"linger_max": "10s", "read_pacing_max": "1s"}) as rig:
            began = time.monotonic()
            rig.send(qos1(rig, 1))
            await until(lambda rig=rig: ids(rig.answers()) == [1], "the acknowledgement")
            waited_s += time.monotonic() - began
    assert waited_s < 30, "each of the forty waited for a tick"


# --- the end ---
@pytest.mark.parametrize(("code", "label", "words"), [
    (0x8E, "taken_over", "session taken over"),
    (0x8B, "server_stopping", "server shutting down"),
    (0x87, "not_authorised", "not authorised"),
    (0x98, "administrative", "administrative action"),
    (0x8D, "keepalive", "keep alive timeout"),
    (0x93, "protocol", "receive maximum exceeded"),
    (0x9C, "redirected", "use another server"),
])  # fmt: skip
async def test_a_disconnect_of_the_brokers_is_said_in_words(code: int, label: str, words: str) -> None:
    async with make_rig() as rig:
        rig.send(packets.disconnect(code))
        found, detail = rig.connection.ended.result()
        assert found == label
        assert found in DISCONNECTS
        assert (detail or "").startswith(f"the broker disconnected us: {words} (0x{code:02X})")
        assert ("same instance and worker" in (detail or "")) is (code == 0x8E), "what to look for"


async def test_messages_behind_a_disconnect_in_the_same_read_are_still_in_the_account() -> None:
    async with make_rig() as rig:
        rig.send(qos1(rig, 1) + packets.disconnect(0x8E) + qos1(rig, 2))
        rig.connection.close()
        await rig.settle()
        rig.path.check()


async def test_a_defect_of_ours_in_a_read_ends_the_connection_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a read is gone from the stream; going on behind it would lose what was in it."""
    async with make_rig() as rig:

        def broken(_self: Ingest, _data: bytes) -> tuple[int, int]:
            raise ZeroDivisionError("a defect")

        monkeypatch.setattr("gateway.mqtt.ingest.Ingest.feed", broken)
        rig.send(qos1(rig, 1))
        label, detail = rig.connection.ended.result()
        assert label == "other"
        assert "a defect" in (detail or "")
        monkeypatch.undo()
        rig.reconnect()
        await rig.deliver(qos1(rig, 1))
        assert ids(rig.answers()) == [1]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "defect", [ZeroDivisionError, IndexError, asyncio.CancelledError], ids=lambda one: one.__name__
)
async def test_only_the_message_that_raised_is_disowned_and_the_account_balances(
    monkeypatch: pytest.MonkeyPatch, defect: type[BaseException], qos: int
) -> None:
    """What came before it in the read is taken, and its id is free for the broker's next try."""
    async with make_rig() as rig:
        slow = rig.path.dispatcher.slow

        def broken(flags: int, topic: bytes, properties: bytes, payload: bytes) -> None:
            if payload == b"3":
                raise defect("a defect")
            slow(flags, topic, properties, payload)

        monkeypatch.setattr(rig.path.dispatcher, "slow", broken)
        monkeypatch.setattr(rig.path.dispatcher, "entry", lambda _flags, _topic: SLOW)
        packets_of = [rig.publish("devices/1", b"%d" % n, qos=qos, packet_id=n if qos else 0) for n in range(1, 6)]
        with contextlib.suppress(asyncio.CancelledError):  # for the loop, which would have called the reader
            rig.send(b"".join(packets_of))
        assert rig.connection.ended.result()[0] == "other", "a defect of ours is not the broker's"
        ledger = rig.path.ledger
        assert (ledger.received, ledger.returned) == (2, 2 if qos else 0)
        rig.path.check()
        await rig.settle()
        assert rig.path.values == [b"1", b"2"]
        monkeypatch.undo()
        rig.reconnect()
        await rig.deliver(
            *(rig.publish("devices/1", b"%d" % n, qos=qos, packet_id=n, dup=True) for n in range(1, 6) if qos)
        )
        again = {0: [], 1: [b"1", b"2", b"3", b"4", b"5"], 2: [b"3", b"4", b"5"]}[qos]
        assert rig.path.values == [b"1", b"2", *again]
        rig.path.check()


async def test_a_broken_socket_is_noticed_by_reading_not_by_an_exception_in_writing() -> None:
    async with make_rig(holding=True) as rig:
        await rig.deliver(qos1(rig, 1))
        rig.peer.close()
        rig.path.producer.release()
        await rig.settle()  # writes the acknowledgement to nobody
        await until(rig.connection.ended.done, "the end of the connection")
        assert rig.connection.ended.result()[0] == "closed"


# --- keepalive ---
async def due(rig: Rig, data: bytes) -> None:
    """A ping is due after these bytes."""
    size = rig.connection.received_bytes + len(data)
    rig.send(data)
    await until(lambda: rig.connection.received_bytes == size or rig.connection.ended.done(), "read")
    rig.connection._ping()


async def test_a_silent_broker_ends_the_connection() -> None:
    async with make_rig(keepalive_s=0.1) as rig:
        await until(rig.connection.ended.done, "the end for want of an answer")
        assert rig.connection.ended.result() == ("keepalive", "no PINGRESP")
        assert rig.answers() == [Packet(Type.PINGREQ, 0, b"")]


async def test_answers_and_messages_are_signs_of_life() -> None:
    async with make_rig() as rig:
        rig.connection._ping()
        for data in (packets.PINGRESP, packets.PINGRESP, qos1(rig, 1), qos1(rig, 2)):
            await due(rig, data)
        assert not rig.connection.ended.done(), rig.connection.ended
        assert [answer.type for answer in rig.answers()].count(Type.PINGREQ) == 5


async def test_a_large_packet_on_a_slow_link_is_a_sign_of_life_too() -> None:
    """A PINGRESP cannot overtake it."""
    async with make_rig() as rig:
        data = rig.publish("devices/1", bytes(100_000))
        for start in range(0, len(data), 2000):
            await due(rig, data[start : start + 2000])
        assert not rig.connection.ended.done(), rig.connection.ended
        assert len(rig.path.values) == 1


async def test_a_packet_that_is_never_finished_ends_the_connection() -> None:
    """After a wrong length everything is swallowed as the packet's rest, the answers to our pings too: without this the
    connection looked alive for ever, its window full."""
    async with make_rig() as rig:
        await due(rig, qos1(rig, 1) + b"\x30\xff\xff\x03")
        for _ in range(2):
            await due(rig, packets.PINGRESP)
        label, detail = rig.connection.ended.result()
        assert label == "protocol"
        assert "does not finish it" in (detail or "")
        assert rig.path.values == [b"1"]


async def test_a_servers_keep_alive_shortens_the_interval_at_once_and_zero_does_not_flood_it() -> None:
    async with make_rig(keepalive_s=60) as rig:
        rig.connection.set_window(1000, 0)
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert rig.answers() == [], "0 means that the server does not mind (MQTT 5.0 section 3.2.2.3.14)"
        rig.connection.set_window(1000, 0.1)
        await until(lambda: Type.PINGREQ in [a.type for a in rig.answers()], "a ping in the server's interval")


async def test_a_paused_connection_is_not_given_up_for_answers_it_does_not_read() -> None:
    async with make_rig(keepalive_s=0.1) as rig:
        rig.connection.subscribed()
        rig.path.flow.pause()
        for _ in range(3):
            await until(rig.answers, "a ping, while reading is paused")
        assert not rig.connection.ended.done()


# --- waiting ---
async def test_settled_waits_for_acknowledgements_and_not_longer_than_the_connection() -> None:
    async with make_rig(holding=True) as rig:
        await rig.deliver(qos1(rig, 1))
        waiting = asyncio.create_task(rig.connection.settled())
        await rig.settle()
        assert not waiting.done()
        rig.path.producer.release()
        await asyncio.wait_for(waiting, 60)
        assert ids(rig.answers()) == [1]
        rig.path.producer.holding = True
        await rig.deliver(qos1(rig, 2))
        waiting = asyncio.create_task(rig.connection.settled())
        rig.hang_up()
        await asyncio.wait_for(waiting, 60)


async def test_drained_waits_until_the_broker_has_nothing_more() -> None:
    """Of a queue longer than the window, more comes with each acknowledgement."""
    async with make_rig(window=3) as rig:
        queue = [qos1(rig, number) for number in range(1, 41)]
        rig.send(*queue[:3])
        del queue[:3]
        waiting = asyncio.create_task(rig.connection.drained())
        acknowledged: list[int] = []
        while not waiting.done():
            await asyncio.sleep(0)
            for answer in rig.answers():
                if answer.type is Type.PUBACK:
                    acknowledged.append(int.from_bytes(answer.body[:2]))
                    if queue:
                        rig.send(queue.pop(0))
                else:
                    assert answer.type is Type.PINGREQ
                    rig.send(packets.PINGRESP)
        assert acknowledged == list(range(1, 41))
        rig.path.check()


async def test_a_handshake_is_read_while_reading_is_paused() -> None:
    """Else a session that loses its connection during an outage of Kafka cannot come back before it is over."""
    async with make_rig() as rig:
        rig.path.flow.pause()
        rig.reconnect()
        rig.peer.send(packets.PINGRESP)
        await until(lambda: rig.ingest.pongs == 1, "what came during the handshake is read")
        rig.connection.subscribed()
        rig.peer.send(qos1(rig, 1))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not rig.connection.unacked, "afterwards the pause holds for it as well"


async def test_a_handshake_that_brings_messages_into_a_full_memory_is_read_no_further() -> None:
    """A resumed session is sent its window before SUBACK. That we do not read is no silence of the broker's."""
    async with make_rig() as rig:
        assert rig.connection.handshaking
        rig.path.producer.holding = True
        await rig.deliver(qos1(rig, 1))
        rig.path.flow.pause()
        rig.peer.send(packets.PINGRESP + qos1(rig, 2))
        await until(lambda: rig.ingest.pongs == 1, "what came before the messages is read")
        rig.peer.send(qos1(rig, 3) + packets.PINGRESP)
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert (rig.connection.messages, rig.connection.silent_s()) == (1, 0.0)
        rig.path.producer.release()
        await until(lambda: rig.connection.messages == 3, "there is room, and it is read")
        assert rig.ingest.pongs == 2
        assert 0 < rig.connection.silent_s() < 60
        await rig.settle()
        assert ids(rig.answers()) == [1, 2, 3]
        rig.path.check()


async def test_a_session_that_comes_again_and_again_takes_no_more_of_a_full_memory() -> None:
    """Its window is sent again each time. Days of an unsteady network would fill the machine's memory."""
    async with make_rig(holding=True) as rig:
        window = b"".join(qos1(rig, number) for number in range(1, 51))
        await rig.deliver(window)
        rig.path.flow.pause()
        full = rig.path.accumulator.buffered_bytes
        for _ in range(5):
            rig.reconnect()
            rig.send(packets.PINGRESP + window[:100], window[100:])
            rig.path.flow.flush()
            assert rig.path.accumulator.buffered_bytes == full
            rig.path.check()
        rig.path.producer.holding = False
        await rig.release()
        await until(lambda: rig.connection.acknowledged == 50, "the last ones are read at the end of the pause")
        await rig.settle()
        assert ids(rig.answers()) == list(range(1, 51))
        rig.path.check()


async def test_silence_is_counted_from_the_last_byte_or_the_end_of_a_pause() -> None:
    async with make_rig() as rig:
        rig.connection.subscribed()
        await until(lambda: rig.connection.silent_s() > 0.5, "silence")

        def is_heard() -> bool:  # a machine that stands still lets the silence begin again
            rig.peer.send(packets.PINGRESP)
            return rig.connection.silent_s() < 0.5

        await until(is_heard, "a byte ends it")
        rig.connection.hold()
        assert rig.connection.silent_s() == 0
        await asyncio.sleep(0.5)
        rig.connection.resume()
        assert rig.connection.silent_s() < 0.5


async def test_a_broker_that_overruns_the_window_is_read_no_further_until_half_is_acknowledged() -> None:
    with capture_logs() as logs:
        async with make_rig(limit=10) as rig:
            rig.connection.subscribed()
            rig.path.producer.holding = True
            for turn in (1, 2):
                for number in range(1, 31):
                    rig.peer.send(qos1(rig, number))
                    rig.connection.read()
                assert rig.connection.unacked == 11
                assert rig.connection.overrun >= 11
                assert rig.connection.silent_s() == 0, "it is us who do not read"
                rig.path.check()
                rig.path.producer.release()
                await until(
                    lambda turn=turn: rig.connection.acknowledged == 30 * turn,
                    "all are read and acknowledged in the end",
                )
                await rig.settle()
                assert ids(rig.answers()) == list(range(1, 31))
                rig.path.producer.holding = True
            rig.path.producer.release()
            rig.path.check()
    assert [entry["unacked"] for entry in logs if entry["event"] == "mqtt_window_overrun"] == [11]


async def test_a_broker_that_keeps_to_the_window_is_never_held() -> None:
    async with make_rig(limit=10, holding=True) as rig:
        rig.send(*(qos1(rig, number) for number in range(1, 11)))
        assert (rig.connection.unacked, rig.connection.overrun) == (10, 0)
        rig.send(rig.publish("devices/1", b"0"))
        assert rig.connection.messages == 11, "QoS 0 has no window"
