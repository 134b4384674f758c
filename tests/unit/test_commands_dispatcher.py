"""Single decisions about commands; random histories are in test_commands_simulation.py."""

import json
from collections import defaultdict

import pytest

from bridge.commands.command import State
from bridge.commands.model import Answer
from bridge.commands.ports import CUT, DENIED, Committed
from bridge.commands.reading import Delivery
from bridge.dead_letters.reading import LoggedRecord, Place
from tests.unit.test_commands_simulation import BEGIN_MS, Member, S, World, earlier


def commanding(**settings: str) -> Member:
    """A member that has sent its first command."""
    member = Member(World(1, **settings))
    member.assign(("commands", 0))
    member.dispatcher.take([command(BEGIN_MS)])
    return member


def test_a_devices_rate_holds_though_it_has_nothing_under_way() -> None:
    world = World(1, rate_per_device=1, answers=None, delivered_by=None)
    member = Member(world)
    member.assign(("commands", 0))
    for offset in range(2):
        place = Place("commands", 0, offset)
        member.dispatcher.take([LoggedRecord(place, BEGIN_MS, b"d0", b"on", [])])
        assert len(member.sending) == (offset == 0), "the second one waits for the rate"
        while member.sending:
            member.sending.popleft()[1](0)
        member.kafka_takes()
    assert member.dispatcher.due_ns() == S
    world.ns = S
    member.dispatcher.tick()
    assert len(member.sending) == 1


def test_a_login_that_expires_costs_no_command_and_what_is_denied_twice_is_refused() -> None:
    """EMQX sends DISCONNECT 0x87 for both."""
    member = commanding()
    for _ in range(2):
        member.sending.popleft()[1](DENIED)
        member.dispatcher.pump()
    member.kafka_takes()
    ((_, status),) = member.world.statuses[0]
    assert (status["status"], status["attempt"], status["mqtt_reason_code"]) == ("undeliverable", 2, 0x87)


def test_a_command_above_a_limit_of_the_broker_was_never_published() -> None:
    member = Member(World(1))

    def publish(*_: object) -> None:
        raise ValueError("the broker takes less")

    member.publish = publish  # type: ignore[method-assign]
    member.assign(("commands", 0))
    member.dispatcher.take([command(BEGIN_MS), command(BEGIN_MS, 1)])
    member.kafka_takes()
    first, second = (value for _, value in member.world.statuses[0])
    assert (first["status"], first["attempt"], first.get("receiver")) == ("undeliverable", 0, None)
    assert second["status"] == "accepted", "it waits until Kafka has the first one's end"


def test_a_command_that_ends_each_connection_waits_and_says_why() -> None:
    """A broker of MQTT 3.1.1 does not tell its largest packet. It was sent again at once, and none behind it left."""
    member = commanding(expiry="60s")
    for code in (None, CUT, None, CUT, CUT):
        member.sending.popleft()[1](code)
    assert not member.sending
    member.kafka_takes()
    ((_, waiting),) = member.world.statuses[0]
    assert (waiting["status"], waiting.get("mqtt_reason_code")) == ("waiting", None)
    assert "too large for the broker" in waiting["reason"]
    for pause_s in (1, 2, 4, 8, 16):
        member.world.ns += pause_s * S
        member.dispatcher.tick()
        member.sending.popleft()[1](CUT)
        assert not member.sending
    member.world.ns = 60 * S
    member.dispatcher.tick()
    member.kafka_takes()
    _, (_, expired) = member.world.statuses[0]
    assert (expired["status"], expired["reason"]) == ("expired", waiting["reason"])


@pytest.mark.parametrize("is_late", [False, True])
def test_a_command_that_the_broker_never_acknowledges_expires_and_holds_nothing_up(is_late: bool) -> None:
    """On a connection that holds. An acknowledgement shortly after the deadline counts."""
    member = commanding(expiry="60s", answer_timeout="20s")
    world = member.world
    world.ns = 79 * S
    member.dispatcher.take([command(BEGIN_MS + 79_000, 1)])
    if is_late:
        member.sending.popleft()[1](0)
    world.ns = 80 * S
    member.dispatcher.tick()
    member.kafka_takes()
    assert [value["status"] for _, value in world.statuses[0]] == ["accepted", "sent" if is_late else "expired"]
    assert [dict(message.user)["command-id"] for message, _ in member.sending][1:] == ["commands/0:1"] * (not is_late)


def test_what_its_writer_took_back_is_committed_and_an_unfinished_command_is_not() -> None:
    """Only aborted transactions came: the group had a lag that nothing explained, and that no command ended."""
    member = Member(World(1))
    member.assign(("commands", 0))
    member.dispatcher.passed({("commands", 0): 5})
    assert not member.dispatcher.commits(), "the topic may have been made anew: nothing is known before a record"
    member.dispatcher.take([command(BEGIN_MS)])
    for end, expected in ((3, Committed(0, "1|0|T1F2")), (4, Committed(0, "1|0|T1F3"))):
        member.dispatcher.passed({("commands", 0): end})
        assert member.dispatcher.commits() == {("commands", 0): expected}
    member.sending.popleft()[1](0)
    answer(member, 200)
    member.kafka_takes()
    member.dispatcher.passed({("commands", 0): 2, ("commands", 1): 9})
    assert member.dispatcher.commits() == {("commands", 0): Committed(4, "1|2|")}


@pytest.mark.parametrize("is_duplicate", [True, False])
def test_no_command_passes_one_whose_refusal_is_not_in_kafka(is_duplicate: bool) -> None:
    """Were it sent and the worker died, the next owner would find no refusal, and send the earlier one after it."""
    member = Member(World(1, release="sent", waiting_per_device=50 if is_duplicate else 1))
    member.assign(("commands", 0))
    for offset in range(3):
        record = command(BEGIN_MS, offset)
        record.headers.extend([("correlation-id", b"x")] * (is_duplicate and offset != 1))
        member.dispatcher.take([record])
    for _ in range(2):  # it holds up none before it
        member.sending.popleft()[1](0)
    member.dispatcher.take([command(BEGIN_MS, 3)])
    assert not member.sending
    member.kafka_takes(20)
    assert "refused" in [value["status"] for _, value in member.world.statuses[0]]
    assert [dict(message.user)["command-id"] for message, _ in member.sending] == ["commands/0:3"]


def answer(member: Member, code: int, *, number: int = 0) -> None:
    """The device's answer to the first command."""
    token = member.world.plan.signer.sign(Place("commands", 0, 0), "commands/0:0")
    member.dispatcher.answered(Answer(Place("answers", 0, number), token, "d0", code, b"", None, BEGIN_MS))


def test_each_answer_of_a_device_that_is_at_work_lets_the_timeout_run_anew() -> None:
    member = commanding(answer_timeout="20s")
    member.sending.popleft()[1](0)
    for number in range(3):
        answer(member, 102, number=number)
        member.world.ns += 19 * S
        member.dispatcher.tick()
    answer(member, 200, number=3)
    member.kafka_takes()
    assert [value["status"] for _, value in member.world.statuses[0]] == ["sent", *["in_progress"] * 3, "succeeded"]


def test_a_device_that_answers_1xx_for_ever_takes_no_memory_while_statuses_wait() -> None:
    member = commanding()
    for number in range(2000):
        answer(member, 102, number=number)
    assert member.waiting == 1000


@pytest.mark.parametrize("case", ["before PUBACK", "after a restart", "1xx", "1xx before PUBACK"])
def test_what_a_device_has_makes_room_for_its_next_command(case: str) -> None:
    """The report, or an answer 1xx, may come before PUBACK, and after the command became another worker's."""
    member = Member(World(1, release="delivered"))
    place = Place("commands", 0, 0)
    token = member.world.plan.signer.sign(place, str(place))
    member.dispatcher.assign(("commands", 0), Committed(0, "1|0|A1") if "restart" in case else None, [])
    member.dispatcher.take([command(BEGIN_MS, offset) for offset in range(2)])
    if case == "1xx":
        member.sending.popleft()[1](0)
    assert len(member.sending) == ("before" in case)
    if "1xx" in case:
        answer(member, 102)
    else:
        member.dispatcher.delivered(Delivery(Place("acked", 0, 0), token, "d0"))
    sent = [dict(message.user)["command-id"] for message, _ in member.sending]
    assert "commands/0:1" in sent


def test_an_answer_to_a_command_of_a_topic_that_was_made_anew_is_not_of_the_one_at_its_place() -> None:
    member = Member(World(1))
    member.assign(("commands", 0))
    named = command(BEGIN_MS)
    named.headers.append(("correlation-id", b"new"))
    member.dispatcher.take([named])
    member.sending.popleft()[1](0)
    for number, id_ in enumerate(("old", "new")):
        token = member.world.plan.signer.sign(Place("commands", 0, 0), id_)
        member.dispatcher.answered(Answer(Place("answers", 0, number), token, "d0", 200, b"", None, BEGIN_MS))
        assert member.dispatcher.account.states[State.FINISHING] == (id_ == "new"), id_
    assert member.dispatcher.account.unmatched == {"already finished": 1}


def test_what_an_earlier_owner_has_sent_counts_as_sent() -> None:
    """It may have been with the device, and is a copy now."""
    member = Member(World(1))
    partition, said = ("commands", 0), status("waiting", BEGIN_MS, terminal=False)
    member.dispatcher.assign(partition, None, earlier(partition, None, [said]))
    member.dispatcher.take([command(BEGIN_MS)])
    member.sending.popleft()[1](0)
    member.kafka_takes()
    assert [(value["status"], value["attempt"]) for _, value in member.world.statuses[0]] == [("sent", 2)]
    assert member.dispatcher.account.sent_again == 1


def test_what_kafka_has_as_sent_is_not_sent_again_though_its_outcome_was_under_way() -> None:
    member = commanding()
    member.sending.popleft()[1](0)
    answer(member, 200)
    member.kafka_takes(1)
    member.commit()
    heir = Member(member.world)
    heir.assign(("commands", 0))
    heir.dispatcher.take([command(BEGIN_MS)])
    assert [value["status"] for _, value in heir.world.statuses[0]] == ["sent"]
    assert not heir.sending


@pytest.mark.parametrize("end", ["stored", "forgotten"])
def test_what_waits_for_its_dead_letter_counts_for_the_memory(end: str) -> None:
    member = Member(World(1, max_waiting_bytes=1 << 20))
    partition = ("commands", 0)
    member.assign(partition)
    for offset in range(2):
        assert not member.dispatcher.full()
        record = LoggedRecord(Place(*partition, offset), BEGIN_MS, None, bytes(1 << 19), [("a", b"b")])
        member.dispatcher.take([record, record])
    assert member.dispatcher.full() == {partition}
    assert len(member.buries) == 2
    if end == "forgotten":
        member.dispatcher.forget([partition])
        member.assign(partition)
    while member.writes[0] or member.buries:
        member.kafka_takes()
    assert not member.dispatcher.full()
    assert member.dispatcher.account.imbalance == 0


def test_answers_that_are_read_again_after_a_restart_are_counted_by_the_life_before() -> None:
    """What is awaited has the last minute's answers read again, those of finished commands too."""
    member = Member(World(1))
    dispatcher = member.dispatcher
    dispatcher.assign(("commands", 0), Committed(0, "1|0|A1"), [])
    dispatcher.begin_answers({("answers", 0): 5})
    answer(member, 200, number=5)
    assert not dispatcher.account.unmatched, "its command is read later"
    dispatcher.take([command(BEGIN_MS)])
    for number in range(4, 8):
        answer(member, 200, number=number)
    assert dispatcher.account.unmatched == {"already finished": 2}


@pytest.mark.parametrize("state", ["open", "timed out", "finished"])
def test_an_answer_with_an_unreadable_status_decides_nothing_and_is_counted(state: str) -> None:
    member = commanding(answer_timeout="20s")
    world = member.world
    member.sending.popleft()[1](0)
    if state == "finished":
        answer(member, 200)
    world.ns += 20 * S * (state == "timed out")
    member.dispatcher.tick()
    member.kafka_takes()
    written = len(world.statuses[0])
    answer(member, 0, number=1)
    other = Answer(Place("answers", 0, 2), "telemetry", "d0", 0, b"", None, BEGIN_MS)
    member.dispatcher.answered(other)
    assert member.dispatcher.account.unmatched == {"already finished" if state == "finished" else "unreadable": 1}
    answer(member, 200, number=3)
    member.kafka_takes()
    assert len(world.statuses[0]) == written + (state != "finished")


def test_what_is_reported_as_delivered_is_not_sent_again_after_a_break() -> None:
    member = Member(World(1, confirm="delivered", answers=None))
    place = Place("commands", 0, 0)
    member.assign(place[:2])
    member.dispatcher.take([LoggedRecord(place, BEGIN_MS, b"d0", b"on", [])])
    member.cut()
    token = member.world.plan.signer.sign(place, str(place))
    member.dispatcher.delivered(Delivery(Place("acked", 0, 0), token, "d0"))
    member.connected = True
    member.dispatcher.pump()
    member.kafka_takes()
    assert not member.sending
    assert member.world.statuses[0][-1][1]["status"] == "delivered"


def test_the_report_of_a_device_may_come_after_the_time_out() -> None:
    member = Member(World(1, confirm="delivered", answers=None, when_offline="queue"))
    place = Place("commands", 0, 0)
    member.assign(place[:2])
    member.dispatcher.take([LoggedRecord(place, BEGIN_MS, b"d0", b"on", [])])
    member.sending.popleft()[1](0)
    member.world.ns = 20 * S
    member.dispatcher.tick()
    answer(member, 200)
    token = member.world.plan.signer.sign(place, str(place))
    for _ in range(2):
        member.dispatcher.delivered(Delivery(Place("acked", 0, 0), token, "d0"))
    member.kafka_takes()
    found = [(value["status"], value.get("late")) for _, value in member.world.statuses[0]]
    assert found == [("sent", None), ("timed_out", None), ("delivered", True)]
    assert member.dispatcher.account.unmatched == {"not asked for": 1}


def queueing(*expiries_s: int, **settings: int) -> Member:
    """A member with commands to one device, which expire so many seconds after the beginning."""
    member = Member(World(1, answers=None, delivered_by=None, **settings))
    member.assign(("commands", 0))
    records = []
    for offset, expiry_s in enumerate(expiries_s):
        headers = [("expires-at", b"%d" % (BEGIN_MS + expiry_s * 1000))]
        records.append(LoggedRecord(Place("commands", 0, offset), BEGIN_MS, b"d0", b"on", headers))
    member.dispatcher.take(records)
    return member


def expired(member: Member, at_s: float) -> list[int]:
    """The offsets that expire by then."""
    member.world.ns = round(at_s * S)
    member.dispatcher.tick()
    found = [record.place.offset for record, _ in member.writes[0] if record.status == "expired"]
    member.kafka_takes(100)
    return found


def test_each_of_a_queue_expires_in_its_time_whatever_is_before_it() -> None:
    member = queueing(100, 30, 5, 6, 40, 7)  # the first is under way, and the broker says nothing
    assert [expired(member, at_s) for at_s in (4.9, 5, 5.9, 6, 7, 29, 30, 39, 40)] == [
        [], [2], [], [3], [5], [], [1], [], [4],
    ]  # fmt: skip
    assert member.dispatcher.account.imbalance == 0


def test_what_becomes_the_first_of_its_queue_expires_too() -> None:
    member = queueing(100, 50, 60)
    member.sending.popleft()[1](0)
    member.kafka_takes()  # finished: the second is sent, and the third is the first of the queue now
    assert expired(member, 59) == []
    assert expired(member, 60) == [2]


def test_a_backlog_that_leaves_is_not_shown_as_accepted() -> None:
    member = queueing(*[1_000] * 5_000, waiting_per_device=100_000)
    assert member.waiting == 1_000, "statuses wait for Kafka, and no more are made"
    while member.sending:
        member.sending.popleft()[1](0)
        member.kafka_takes(10_000)
    history = defaultdict(list)
    for _, value in member.world.statuses[0]:
        history[value["command"]].append(value["status"])
    assert len(history) == 5_000
    assert all(statuses in (["sent"], ["accepted", "sent"]) for statuses in history.values())
    assert 1_000 <= list(history.values()).count(["accepted", "sent"]) < 5_000


def command(timestamp_ms: int, offset: int = 0) -> LoggedRecord:
    headers: list[tuple[str, bytes | None]] = [("response-required", b"true")]
    return LoggedRecord(Place("commands", 0, offset), timestamp_ms, b"d0", b"on", headers)


def status(word: str, at_ms: int, *, terminal: bool, own_id: str = "commands/0:0", at: int = 0) -> LoggedRecord:
    fields = {"id": own_id, "command": f"commands/0:{at}", "status": word, "terminal": terminal, "attempt": 1}
    fields["at_ms"] = at_ms
    return LoggedRecord(Place("status", 0, at), at_ms, b"id", json.dumps(fields).encode(), [])


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, 5_000, 3_600_000])
def test_answers_are_read_again_from_before_a_command_whatever_its_producers_clock_says(ahead_ms: int) -> None:
    """It was sent, and answered, in the last minute; its record may be dated later."""
    world = World(1)
    member = Member(world)
    member.dispatcher.assign(("commands", 0), Committed(0, "1|0|A1"), [])
    member.dispatcher.take([command(BEGIN_MS + ahead_ms)])
    assert member.dispatcher.rewind_ms() <= BEGIN_MS - 60_000
    assert member.dispatcher.rewind_ms() is None


def test_statuses_of_a_topic_that_was_made_anew_are_not_of_its_new_records() -> None:
    """Kafka has deleted the topic's commits with it, and offsets begin again at 0. The same is seen after a rename of
    the group, perhaps with ``id_header``."""
    place = "commands/0:0"
    for age_ms, said_of, header, count in (
        (3_600_000, place, "correlation-id", 1), (-1_000, place, "correlation-id", 0),
        (30_000, place, "correlation-id", 0), (30_000, "new", "correlation-id", 0),
        (30_000, "old", "correlation-id", 1), (30_000, "new", "former-id", 0), (30_000, "old", "former-id", 1),
    ):  # fmt: skip
        world = World(1)
        member = Member(world)
        partition, said = ("commands", 0), status("succeeded", BEGIN_MS - age_ms, terminal=True, own_id=said_of)
        member.dispatcher.assign(partition, None, earlier(partition, None, [said]))
        named = command(BEGIN_MS)
        named.headers.append((header, b"new"))
        member.dispatcher.take([named])
        assert len(member.sending) == count, (age_ms, said_of, header)


def test_statuses_of_a_topic_that_was_made_anew_are_not_of_its_new_records_for_the_next_owner_either() -> None:
    """Its commit is none of a new topic any more: it took old statuses for those of new commands, and dropped these."""
    world, partition = World(1), ("commands", 0)
    old = [status("succeeded", BEGIN_MS - 3_600_000, terminal=True, own_id=f"commands/0:{at}", at=at) for at in (0, 1)]
    world.statuses[0] = [(f"commands/0:{one.place.offset}", json.loads(one.value or b"")) for one in old]
    member = Member(world)
    member.assign(partition)
    member.dispatcher.take([command(BEGIN_MS)])
    member.sending.popleft()[1](0)
    answer(member, 200)
    member.kafka_takes()
    member.commit()
    heir = Member(world)
    heir.assign(partition)
    heir.dispatcher.take([command(BEGIN_MS, 1)])
    assert len(heir.sending) == 1
