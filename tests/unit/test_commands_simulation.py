"""Commands in random histories: members come, crash and hand over, the broker and devices do what they like.

The verdict is taken from the status topic and the devices' own records, never from what the dispatcher believes.
"""

import json
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from bridge.commands.account import Account
from bridge.commands.command import State
from bridge.commands.dispatcher import Dispatcher
from bridge.commands.model import Answer, Status, StatusRecord
from bridge.commands.partition import Earlier, Known
from bridge.commands.plan import CommandPlan
from bridge.commands.ports import CUT, Committed, Outgoing, Partition, Published
from bridge.commands.reading import BadCommandError, Delivery, Presence
from bridge.dead_letters.reading import LoggedRecord, Place
from config.tables.commands import CommandSettings

BEGIN_MS = 1_700_000_000_000
S = 1_000_000_000
RANKS = [
    {"accepted"}, {"waiting"}, {"sent"}, {"delivered"}, {"in_progress"},
    {"succeeded", "failed", "rejected", "timed_out", "expired", "undeliverable", "refused"},
]  # fmt: skip
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}


class World:
    """Kafka's logs, the time, and what devices got."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self.rng = random.Random(seed)
        self.ns = 0
        chosen = {"answers": "answers", "answer_timeout": "20s", "expiry": "60s", "delivered_by": "acked", **settings}
        self.settings = CommandSettings(
            name="c", topics=("commands",), status_topic="status", secret="s" * 32, **chosen
        )
        self.plan = CommandPlan.from_settings(self.settings)
        self.log: dict[int, list[LoggedRecord]] = {0: [], 1: []}
        self.statuses: dict[int, list[tuple[str, dict[str, Any]]]] = {0: [], 1: []}
        self.committed: dict[Partition, Committed] = {}
        self.got: dict[str, list[str]] = defaultdict(list)  # by device: the ids of the commands it got, with copies
        self.sends: dict[str, list[tuple[int, bool]]] = defaultdict(list)  # by id: when, and whether it is explained
        self.answers: list[Answer] = []
        self.buried: list[Place] = []
        self.explained: set[str] = set()
        self.members: list[Member] = []
        self.online = {f"d{n}": self.rng.random() < 0.8 for n in range(5)}

    def now_ns(self) -> int:
        return self.ns

    def now_ms(self) -> int:
        return BEGIN_MS + self.ns // 1_000_000

    def produce(self) -> None:
        partition = self.rng.randrange(2)
        # A device's commands are in one partition, as its key says.
        device = self.rng.choice([f"d{n}" for n in range(5) if n % 2 == partition])
        headers: list[tuple[str, bytes | None]] = [("response-required", self.rng.choice([b"true", b"false"]))]
        if self.rng.random() < 0.2:
            headers.append(("correlation-id", b"id%d" % self.rng.randrange(8)))
        if self.rng.random() < 0.1:
            headers.append(("expires-at", b"%d" % (self.now_ms() + self.rng.choice([0, 500, 5000]))))
        key = b"bad/name" if self.rng.random() < 0.03 else device.encode()
        records = self.log[partition]
        gap = self.rng.random() < 0.05  # a transaction's marker
        offset = (records[-1].place.offset + 1 + gap) if records else 3
        place = Place("commands", partition, offset)
        records.append(LoggedRecord(place, self.now_ms(), key, b"on", headers))

    def answer(self, token: str, device: str) -> None:
        code = self.rng.choice([102, 200, 200, 404, 500])
        sender = "d9" if self.rng.random() < 0.02 else device
        for _ in range(self.rng.choice([1, 1, 1, 2])):
            place = Place("answers", 0, len(self.answers))
            self.answers.append(Answer(place, token, sender, code, b"done", None, self.now_ms()))

    def status(self, partition: int, record: StatusRecord) -> int:
        self.statuses[partition].append((record.key().decode(), json.loads(record.value())))
        return len(self.statuses[partition]) - 1

    def status_records(self, partition: int, start: int) -> Iterable[LoggedRecord]:
        for offset, (key, value) in list(enumerate(self.statuses[partition]))[start:]:
            place = Place("status", partition, offset)
            yield LoggedRecord(place, 0, key.encode(), json.dumps(value).encode(), [])


class Member:
    """A worker: the dispatcher with a link, a status writer and a position of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sending: deque[tuple[Outgoing, Published]] = deque()
        self.writes: dict[int, deque[tuple[StatusRecord, Callable[[int], None]]]] = {0: deque(), 1: deque()}
        self.buries: deque[tuple[Place, Callable[[], None]]] = deque()
        self.position: dict[Partition, int] = {}
        self.read_answers = len(world.answers)
        self.connected = True
        self.dispatcher = Dispatcher(world.plan, self, self, self, world)
        self.dispatcher.is_open = True

    # CommandLink

    @property
    def room(self) -> int:
        return 4 - len(self.sending) if self.connected else 0

    def publish(self, message: Outgoing, published: Published) -> None:
        assert self.connected
        assert len(self.sending) < 4
        assert message.expiry_s > 0
        self.sending.append((message, published))

    # StatusSink and Graveyard

    def write(self, partition: int, record: StatusRecord, stored: Callable[[int], None]) -> None:
        self.writes[partition].append((record, stored))

    @property
    def waiting(self) -> int:
        return sum(map(len, self.writes.values()))

    def bury(self, record: LoggedRecord, error: BadCommandError, stored: Callable[[], None]) -> None:
        self.buries.append((record.place, stored))

    # events

    def assign(self, partition: Partition) -> None:
        committed = self.world.committed.get(partition)
        known = self.world.status_records(partition[1], self.dispatcher.status_offset(committed))
        self.dispatcher.assign(partition, committed, earlier(partition, committed, known))
        self.position[partition] = 0 if committed is None else committed.offset

    def read(self) -> None:
        rng, found = self.world.rng, []
        for partition, at in self.position.items():
            if partition not in self.dispatcher.full():
                records = [one for one in self.world.log[partition[1]] if one.place.offset >= at]
                found += records[: rng.randrange(1, 6)]
        for record in found:
            self.position[record.place.topic, record.place.partition] = record.place.offset + 1
        self.dispatcher.take(found)
        if (moment_ms := self.dispatcher.rewind_ms()) is not None:
            earlier = [n for n, one in enumerate(self.world.answers) if one.timestamp_ms >= moment_ms]
            self.read_answers = min([self.read_answers, *earlier])

    def broker_answers(self) -> None:
        if not self.sending:
            return
        world, rng = self.world, self.world.rng
        message, published = self.sending.popleft()
        user = dict(message.user)
        device, command_id = message.topic.split("/")[1], user["command-id"]
        token = (message.correlation_data or b"").decode()
        got = world.online[device]
        if got:
            world.got[device].append(command_id)
            if rng.random() < 0.8:
                self.world.answer(token, device)
        if rng.random() < 0.05:
            world.explained.add(command_id)
            published(None)
        elif rng.random() < 0.03:
            published(0x97)
        elif rng.random() < 0.02:
            published(0x87)
        else:
            published(0 if got else 0x10)
            if got and rng.random() < 0.5:
                self.dispatcher.delivered(Delivery(Place("acked", 0, 0), token, device))

    def cut(self) -> None:
        """The connection ends; nobody knows what the broker has."""
        ended, self.sending = list(self.sending), deque()
        self.connected = False
        for number, (message, published) in enumerate(ended):
            self.world.explained.add(dict(message.user)["command-id"])
            published(None if number else CUT)

    def kafka_takes(self, most: int = 5) -> None:
        for partition, queue in self.writes.items():
            for _ in range(min(most, len(queue))):
                record, stored = queue.popleft()
                stored(self.world.status(partition, record))
        while self.buries and self.world.rng.random() < 0.7:
            place, stored_letter = self.buries.popleft()
            self.world.buried.append(place)
            stored_letter()

    def hear_answers(self) -> None:
        for answer in self.world.answers[self.read_answers :]:
            self.dispatcher.answered(answer)
        self.read_answers = len(self.world.answers)

    def commit(self) -> None:
        offsets = self.dispatcher.commits()
        self.world.committed.update(offsets)
        self.dispatcher.committed(offsets)

    def hand_over(self) -> None:
        """As a rebalance asks: stop sending, wait, commit, let go."""
        mine = list(self.position)
        self.dispatcher.close(mine)
        for _ in range(50):
            while self.sending:
                self.broker_answers()
            self.kafka_takes()
            if self.dispatcher.is_settled(mine):
                break
        assert self.dispatcher.is_settled(mine)
        self.commit()
        self.dispatcher.forget(mine)
        self.position.clear()

    def crash(self) -> None:
        """kill -9: some of what is on its way arrives still."""
        for message, _ in self.sending:
            self.world.explained.add(dict(message.user)["command-id"])
        for partition, queue in self.writes.items():
            for _ in range(self.world.rng.randrange(len(queue) + 1)):
                record, _ = queue.popleft()
                self.world.status(partition, record)
            for record, _ in queue:
                self.world.explained.add(record.id)


def earlier(
    partition: Partition, committed: Committed | None, records: Iterable[LoggedRecord]
) -> Iterable[tuple[int, Known]]:
    """What statuses say of a partition."""
    found = Earlier({partition: committed})
    for record in records:
        found.take(record)
    return found.of(partition)


def step(world: World) -> None:
    rng = world.rng
    member = rng.choice(world.members)
    dispatcher = member.dispatcher
    match rng.choices(
        ["produce", "read", "broker", "kafka", "answers", "commit", "time", "presence", "cut", "connect", "garbage",
         "crash", "hand_over"],
        [20, 20, 30, 30, 20, 10, 15, 4, 2, 10, 2, 1, 2],
    )[0]:  # fmt: skip
        case "produce":
            world.produce()
        case "read":
            member.read()
        case "broker":
            member.broker_answers()
        case "kafka":
            member.kafka_takes(rng.randrange(1, 5))
        case "answers":
            member.hear_answers()
        case "commit":
            member.commit()
        case "time":
            world.ns += rng.choice([S // 100, S, 3 * S])
            dispatcher.tick()
        case "presence":
            device = rng.choice(list(world.online))
            world.online[device] = not world.online[device]
            for one in world.members:
                one.dispatcher.heard(Presence(device, world.online[device]))
        case "cut":
            member.cut()
        case "connect":
            member.connected = True
            dispatcher.pump()
        case "garbage":
            place = Place("answers", 0, len(world.answers))
            world.answers.append(Answer(place, "nonsense", "d1", 200, b"", None, world.now_ms()))
        case "crash":
            move(world, member, Member.crash)
        case "hand_over":
            move(world, member, Member.hand_over)


def move(world: World, member: Member, leave: Callable[[Member], None]) -> None:
    """A member leaves, by a crash or well; another one, perhaps a new one, owns its partitions."""
    theirs = list(member.position)
    member.connected = True
    leave(member)
    world.members.remove(member)
    heir = Member(world)
    world.members.append(heir)
    for partition in theirs:
        heir.assign(partition)


def check_account(world: World) -> None:
    for member in world.members:
        account = member.dispatcher.account
        counted = sum(len(owned.commands) + len(owned.burying) for owned in member.dispatcher._partitions.values())
        assert account.imbalance == 0
        assert account.waiting + account.under_way == counted
        assert min(account.states.values(), default=0) >= 0


def settle(world: World) -> None:
    """Devices are there, and time goes on until everything is finished."""
    world.online = dict.fromkeys(world.online, True)
    for _ in range(400):
        for member in world.members:
            member.connected = True
            member.dispatcher.tick()
            member.read()
            while member.sending:
                member.broker_answers()
            member.kafka_takes()
            member.hear_answers()
            member.commit()
        world.ns += S // 2
    for member in world.members:
        member.kafka_takes(1000)
        member.commit()


def verdict(world: World) -> None:
    by_place: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for partition in world.statuses.values():
        for _, value in partition:
            by_place[value["command"]].append(value)
    for partition, records in world.log.items():
        for record in records:
            found = by_place[str(record.place)]
            history = [(one["status"], one["terminal"], one.get("late", False)) for one in found]
            outcomes = [status for status, terminal, late in history if terminal and not late]
            assert len(outcomes) == 1, (record.place, history)
            late = [status for status, _, is_late in history if is_late]
            assert len(late) <= 1, history
            assert not late or outcomes == ["timed_out"], history
            ranks = [RANK[status] if not terminal else 9 for status, terminal, is_late in history if not is_late]
            assert ranks == sorted(ranks), history
        if records:
            assert world.committed["commands", partition].offset == records[-1].place.offset + 1
    for device, got in world.got.items():
        first = list(dict.fromkeys(got))
        order = [str(record.place) for records in world.log.values() for record in records]
        places = [order.index(one) for one in first if one in order]
        assert places == sorted(places), (device, first)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("settings", [
    {},
    {"release": "sent", "when_offline": "fail", "waiting_per_device": 3},
    {"confirm": "delivered", "when_offline": "queue", "rate": 20, "rate_per_device": 2},
], ids=["answered", "sent", "delivered"])  # fmt: skip
def test_each_command_gets_one_outcome_in_order_whatever_happens(seed: int, settings: dict[str, Any]) -> None:
    world = World(seed, **settings)
    world.members = [Member(world), Member(world)]
    for number, member in enumerate(world.members):
        member.assign(("commands", number))
    for _ in range(600):
        step(world)
        check_account(world)
    settle(world)
    check_account(world)
    verdict(world)
    assert not any(member.dispatcher.account.states[state] for member in world.members for state in State)
    assert Status.SENT in world.plan.settings.confirm or world.got


# --- mutations: what the account sees ---
class Forgetful(Account):
    """An account that leaves one count out, once: the first rise of ``term``."""

    def __init__(self, term: str, key: State | Status | None = None) -> None:
        object.__setattr__(self, "term", term)
        object.__setattr__(self, "has_forgotten", False)
        super().__init__()
        if key is not None:
            setattr(self, term, ForgetfulCounter(self, key))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == self.term and isinstance(value, int) and value > 0 and not self.has_forgotten:
            object.__setattr__(self, "has_forgotten", True)
        else:
            object.__setattr__(self, name, value)


class ForgetfulCounter(Counter[Any]):
    def __init__(self, account: Forgetful, key: State | Status) -> None:
        super().__init__()
        self.account, self.key = account, key

    def __setitem__(self, key: Any, count: int) -> None:
        if key == self.key and count > self[key] and not self.account.has_forgotten:
            object.__setattr__(self.account, "has_forgotten", True)
        else:
            super().__setitem__(key, count)


TERMS = [
    ("consumed", None), ("given_up", None), *(("states", state) for state in State),
    *(("finished", status) for status in (Status.SENT, Status.SUCCEEDED, Status.TIMED_OUT, Status.REFUSED)),
]  # fmt: skip


@pytest.mark.parametrize(("term", "key"), TERMS)
def test_a_count_that_is_left_out_moves_the_imbalance(term: str, key: State | Status | None) -> None:
    for seed in range(50):
        world = World(seed, answer_timeout="1s")
        member = Member(world)
        world.members = [member]
        account = Forgetful(term, key)
        member.dispatcher.account = account
        for number in range(2):
            member.assign(("commands", number))
        for _ in range(300):
            step(world)
            assert (account.imbalance != 0) == account.has_forgotten
            if account.has_forgotten:
                return
            if member not in world.members:
                break
    pytest.fail("it was never counted")
