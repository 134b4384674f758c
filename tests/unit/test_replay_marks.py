"""Marks in a partition's order: one replay has a dead letter, whoever else begins, dies or insists."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.dead_letters.replay_marks import Mark, MarkKind, Marks
from tests.kinds import there

PLACE = ("dead", 0, 7)
BEGUN, DONE, UNDONE = MarkKind.BEGUN, MarkKind.DONE, MarkKind.UNDONE


def record(mark: Mark, at: int = 100, place: tuple[str, int] = ("dead", 0)) -> LoggedRecord:
    return LoggedRecord(Place(*place, at), 1000 + at, mark.key, None, mark.headers())


def after(*marks: Mark) -> Marks:
    book = Marks()
    for at, mark in enumerate(marks):
        assert book.take(record(mark, at))
    return book


def test_other_records_are_no_marks() -> None:
    book = Marks()
    for headers in ([], [("dlq.reason", b"x")], [("dlq.replay", b"perhaps")], [("dlq.replay", b"done")]):
        assert not book.take(LoggedRecord(Place("dead", 0, 1), 1, None, None, headers))


def test_the_dead_letter_of_a_command_with_the_headers_of_a_mark_is_none() -> None:
    book = Marks()
    headers = [*Mark(BEGUN, 7, "a").headers(), ("dlq.reason", b"invalid_topic")]
    assert not book.take(LoggedRecord(Place("dead", 0, 9), 1, b"k", b"x", headers))
    assert book.of(*PLACE) is None


def test_the_first_to_begin_has_it_and_the_second_has_not() -> None:
    replay = there(after(Mark(BEGUN, 7, "a"), Mark(BEGUN, 7, "b"), Mark(DONE, 7, "b")).of(*PLACE))
    assert (replay.id, replay.done) == ("a", False)


def test_what_is_done_stays_done_and_what_is_undone_is_free() -> None:
    done = there(after(Mark(BEGUN, 7, "a"), Mark(DONE, 7, "a"), Mark(UNDONE, 7, "a"), Mark(BEGUN, 7, "b")).of(*PLACE))
    assert (done.id, done.done, done.at_ms) == ("a", True, 1001)
    assert after(Mark(BEGUN, 7, "a"), Mark(UNDONE, 7, "a")).of(*PLACE) is None


def test_who_insists_takes_it_over_and_gives_it_back_as_it_was() -> None:
    marks = [Mark(BEGUN, 7, "a"), Mark(DONE, 7, "a"), Mark(BEGUN, 7, "b", "a")]
    replay = there(after(*marks).of(*PLACE))
    assert (replay.id, replay.done) == ("b", False)
    back = there(after(*marks, Mark(UNDONE, 7, "b")).of(*PLACE))
    assert (back.id, back.done) == ("a", True)


def test_partitions_topics_and_offsets_are_apart() -> None:
    book = after(Mark(BEGUN, 7, "a"))
    for other in (("dead", 1, 7), ("other", 0, 7), ("dead", 0, 8)):
        assert book.of(*other) is None


@dataclass
class Player:
    """A replay as the command does it: look, begin, read on, and only then act."""

    id: str
    insists: bool
    book: Marks = field(default_factory=Marks)
    read: int = 0
    state: str = "new"
    acts: list[str] = field(default_factory=list)

    def see(self, log: list[Mark]) -> None:
        for at in range(self.read, len(log)):
            self.book.take(record(log[at], at))
        self.read = len(log)

    def step(self, log: list[Mark], outcome: MarkKind | None) -> None:
        """One step; ``outcome`` None: it dies after it has acted."""
        if self.state == "new":
            self.see(log)
            has = self.book.of(*PLACE)
            self.state = "looked" if has is None or self.insists else "over"
        elif self.state == "looked":
            has = self.book.of(*PLACE)
            log.append(Mark(BEGUN, 7, self.id, has.id if has is not None else ""))
            self.state = "begun"
        elif self.state == "begun":
            self.see(log)
            has = self.book.of(*PLACE)
            if has is not None and has.id == self.id:
                self.acts.append("sent")
                if outcome is not None:
                    log.append(Mark(outcome, 7, self.id))
            self.state = "over"


@given(
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([DONE, UNDONE, None])), max_size=40),
)
def test_however_they_interleave_none_acts_on_what_another_has(
    insisting: list[bool], turns: list[tuple[int, MarkKind | None]]
) -> None:
    log: list[Mark] = []
    players = [Player(f"r{n}", insists) for n, insists in enumerate(insisting)]
    for which, outcome in turns:
        players[which % len(players)].step(log, outcome)
    book = after(*log)
    taken_back = sum(mark.kind is UNDONE for mark in log)
    unasked = [player for player in players if player.acts and not player.insists]
    assert len(unasked) <= 1 + taken_back, "two replays that do not insist sent the same message"
    # Of those that insisted behind the same replay, one acted at most.
    behind: dict[str, int] = {}
    for player in players:
        if player.acts:
            own = next(mark for mark in log if mark.kind is BEGUN and mark.replay == player.id)
            behind[own.after] = behind.get(own.after, 0) + 1
    assert all(count <= 1 + taken_back for count in behind.values()), behind
    final = book.of(*PLACE)
    if any(mark.kind is DONE for mark in log):
        assert final is not None
