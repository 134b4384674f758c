"""A chain: order, what each answer means, what each policy does with a failure, acknowledgements, counts."""

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import interceptors, message
from bridge import record as record_module
from bridge.errors import BridgeError, PoisonedError
from bridge.interceptors import (
    INTERCEPTOR_ERROR,
    OTHER_REASON,
    OUTCOMES,
    TIMED_ONE_IN,
    Chain,
    Chains,
    Drop,
    Fault,
    Interceptor,
    RecordMetadata,
    Stage,
)
from bridge.ledger_topic.intervals import LedgerIntervals
from bridge.message import MessageView
from bridge.record import NotJsonError, Record, dump_json
from config.settings import Settings
from gateway.base.metrics import Metrics
from gateway.components.send_counts import SendCounts
from tests.kinds import is_a

METADATA = RecordMetadata("t", 0, 17, 3)


def record(value: bytes | None = b"v", **parts: Any) -> Record:
    made = Record(MessageView("a/b", 2, payload=value or b""), "t", b"k", value, [], 7)
    return made.replace(**parts) if parts else made


class Tag(Interceptor):
    """Adds a letter, so that the order shows."""

    def __init__(self, letter: bytes) -> None:
        self.letter = letter

    def on_send(self, record: Record) -> Record:
        return record.replace(value=(record.value or b"") + self.letter)


class Answer(Interceptor):
    """Answers whatever it is told to, or raises it."""

    drop_reasons = ("declared",)

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.closed = 0
        self.seen: list[Record] = []

    def on_send(self, record: Record) -> Any:
        self.seen.append(record)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(record) if callable(self.answer) else self.answer

    def close(self) -> None:
        self.closed += 1
        if isinstance(self.answer, BaseException):
            raise self.answer


def stage(interceptor: Any, policy: Any = "dead_letter", label: str = "it") -> Stage:
    return Stage(interceptor, label=label, where=f"route 'r', interceptors[0] ({label})", policy=policy)


def split(count: int) -> Answer:
    return Answer(lambda one: [one.replace(value=b"%d" % number) for number in range(count)])


def only(*numbers: int) -> Answer:
    return Answer(lambda one: one if int(one.value) in numbers else Drop("declared"))


def fail_on_2(one: Record) -> Record:
    if one.value == b"2":
        raise ValueError("two")
    return one


FAILS = Answer(ValueError("no"))
OUTCOMES_OF_CHAINS: dict[str, tuple[list[Stage], Any]] = {
    "a drop keeps its declared reason": ([stage(Answer(Drop("declared"))), stage(Tag(b"1"))], "drop: declared"),
    "a reason nobody declared": ([stage(Answer(lambda one: Drop(f"made up {one.value!r}")))], f"drop: {OTHER_REASON}"),
    "several take the rest of the chain each": ([stage(split(5)), stage(only(1, 3)), stage(Tag(b"!"))], [b"1!", b"3!"]),
    "one of one": ([stage(split(1)), stage(only(0))], b"0"),
    "one that is left of several is one": ([stage(split(4)), stage(only(2))], b"2"),
    "nothing left of several is a drop": ([stage(split(3)), stage(only())], "drop: declared"),
    "splits may be split again": ([stage(split(2)), stage(split(3))], [b"0", b"1", b"2"] * 2),
    "pass goes on with the last good record": ([stage(Tag(b"1")), stage(FAILS, "pass"), stage(Tag(b"3"))], b"v13"),
    "drop is a drop with a reason of its own": ([stage(FAILS, "drop")], f"drop: {INTERCEPTOR_ERROR}"),
    "a fault of one of several is the whole message's": ([stage(split(4)), stage(Answer(fail_on_2))], "fault"),
}


@pytest.mark.parametrize(("stages", "outcome"), OUTCOMES_OF_CHAINS.values(), ids=OUTCOMES_OF_CHAINS)
def test_what_a_chain_makes_of_a_record(stages: list[Stage], outcome: Any) -> None:
    def shown(found: Any) -> Any:
        match found:
            case Record():
                return found.value
            case Drop():
                return f"drop: {found.reason}"
            case Fault():
                return "fault"
        return [one.value for one in found]

    chain = Chain("r", stages)
    for _ in range(3):  # the timed way, and the other
        assert shown(chain.run(record())) == outcome


def test_what_was_dropped_goes_no_further() -> None:
    behind = Answer(lambda one: one)
    chain = Chain("r", [stage(Answer(Drop("declared"))), stage(behind)])
    for _ in range(3):
        chain.run(record())
    assert behind.seen == []
    assert chain.stages[0].counts() == (0, 0, 3, 0, 0)
    assert chain.drop_reasons == ("declared", INTERCEPTOR_ERROR, OTHER_REASON)


# --- failures ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("policy", "stops"), [("dead_letter", False), ("stop", True)])
def test_a_fault_names_place_and_cause(policy: str, stops: bool) -> None:
    chain = Chain("r", [stage(Answer(ZeroDivisionError("by nought")), policy, "mine")])
    for _ in range(2):
        outcome = is_a(Fault, chain.run(record()))
        assert outcome.stop is stops
        assert isinstance(outcome.error, BridgeError)
        for word in ("'r'", "interceptors[0]", "mine", "ZeroDivisionError", "by nought"):
            assert word in str(outcome.error)
    assert chain.stages[0].counts() == (0, 0, 0, 2, 0)


@pytest.mark.parametrize("answer", [None, b"bytes", [], [None], "text", (1, 2), {}])
def test_an_answer_that_is_none_is_a_failure(answer: Any) -> None:
    chain = Chain("r", [stage(Answer(lambda _: answer))])
    for _ in range(2):
        assert "on_send returned" in str(is_a(Fault, chain.run(record())).error)


def test_what_ends_the_process_is_let_through() -> None:
    chain = Chain("r", [stage(Answer(KeyboardInterrupt()))])
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            chain.run(record())


def test_one_message_in_so_many_is_timed_and_stands_for_all() -> None:
    observed: list[int] = []
    chain = Chain("r", [stage(Tag(b"1"))])
    chain.stages[0].observe = lambda _elapsed_ns, calls: observed.append(calls)
    for _ in range(3 * TIMED_ONE_IN):
        chain.run(record())
    assert observed == [TIMED_ONE_IN] * 3


@given(st.lists(st.sampled_from(["pass", "drop", "fail", "split", "one"]), max_size=6), st.data())
def test_every_call_is_counted_once(kinds: list[str], data: st.DataObject) -> None:
    answers: dict[str, Any] = {
        "pass": lambda one: one, "drop": Drop("declared"), "fail": ValueError("no"), "split": lambda one: [one, one],
        "one": lambda one: [one],
    }  # fmt: skip
    interceptors = [Answer(answers[kind]) for kind in kinds]
    policies = [data.draw(st.sampled_from(["pass", "drop", "dead_letter", "stop"])) for _ in kinds]
    chain = Chain("r", [stage(one, policy) for one, policy in zip(interceptors, policies, strict=True)])
    for _ in range(2):
        outcome = chain.run(record())
        assert not isinstance(outcome, list) or len(outcome) > 1
    for one, at in zip(interceptors, chain.stages, strict=True):
        assert sum(at.counts()) == len(one.seen)


# --- acknowledgements and the end -------------------------------------------------------------------------------------
class Listener(Interceptor):
    def __init__(self, error: BaseException | None = None) -> None:
        self.heard: list[tuple[RecordMetadata, BridgeError | None]] = []
        self.error = error

    def on_send(self, record: Record) -> Record:
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BridgeError | None) -> None:
        self.heard.append((metadata, error))
        if self.error is not None:
            raise self.error


class Shaped:
    """No subclass of anything: the shape counts."""

    def on_send(self, record: Record) -> Record:
        return record


@pytest.mark.parametrize(("waits", "written"), [(False, False), (True, False), (False, True)])
def test_a_refused_record_that_is_sent_again_is_not_given_up(waits: bool, written: bool) -> None:
    """Of a stopped route: its listeners were told at each attempt."""
    listener, error = Listener(), PoisonedError("no")
    chains = Chains({"r": Chain("r", [stage(listener)])})
    letters = SimpleNamespace(withholds=lambda _route: waits)
    slot = SimpleNamespace(route="r", topic="t", dead_letter=False, accumulator=SimpleNamespace(dead_letters=letters))
    batch: Any = SimpleNamespace(slot=slot, count=1, messages=1, is_being_written=written)
    counts = SendCounts(Metrics(Settings()), chains, LedgerIntervals(), lambda _: [], lambda *_: None)
    counts.batch_failed(batch, 0, error)
    assert listener.heard == ([] if waits or written else [(RecordMetadata("t", 0, -1, 1), error)])


@pytest.mark.parametrize("raised", [RuntimeError("no"), SystemExit(1)])
def test_only_those_that_listen_are_told_and_one_that_raises_breaks_nothing(raised: BaseException) -> None:
    broken, fine = Listener(raised), Listener()
    chains = Chains({"r": Chain("r", [stage(Tag(b"1")), stage(broken), stage(fine), stage(Shaped())])})
    error = BridgeError("gone")
    chains.stored("r", METADATA)
    chains.given_up("r", METADATA, error)
    chains.stored("another", METADATA)
    assert broken.heard == fine.heard == [(METADATA, None), (METADATA, error)]
    (chain,) = chains
    assert [one.on_send.__self__ for one in chain.acknowledging] == [broken, fine]  # type: ignore[attr-defined]
    assert chain.stages[1].acknowledgement_errors == 2


def test_counts_are_added_up_by_name() -> None:
    chains = Chains({name: Chain(name, [stage(Tag(b"1"), label="a"), stage(split(2), label="b")]) for name in "xy"})
    for chain in chains:
        chain.run(record())
    rows = chains.rows()
    assert rows["a", "pass"] == 2
    assert rows["b", "split"] == 2
    assert set(rows) == {(label, outcome) for label in "ab" for outcome in OUTCOMES}


def test_all_are_closed_once_even_behind_one_that_fails() -> None:
    closed = [Answer(None), Answer(ValueError("no")), Answer(None)]
    chains = Chains({"r": Chain("r", [*map(stage, closed), stage(Shaped())])})
    chains.close()
    chains.close()
    assert [one.closed for one in closed] == [1, 1, 1]


# --- records ----------------------------------------------------------------------------------------------------------
def test_json_is_parsed_once_and_shared_until_the_value_changes() -> None:
    first = record(b'{"a": 1.50, "b": 123456789012345678901234567890}')
    document = first.json()
    assert document == {"a": 1.5, "b": 123456789012345678901234567890}
    assert first.json() is document
    assert first.replace(key=b"x").json() is document
    assert first.replace(value=b"2").json() == 2
    assert first.with_json({"a": 2}).json() == {"a": 2}
    assert first.value == b'{"a": 1.50, "b": 123456789012345678901234567890}'


@pytest.mark.parametrize("value", [None, b"", b"{", b"\xff", b"NaN", b"[" * 100_000, b"1 2"])
def test_what_is_no_json_is_said_to_be_none(value: bytes | None) -> None:
    with pytest.raises(NotJsonError):
        record(value).json()


@pytest.mark.parametrize("document", [{"a": float("inf")}, [float("nan")], {"a": [-float("inf")]}, object()])
def test_what_json_cannot_say_is_not_written(document: Any) -> None:
    with pytest.raises(NotJsonError):
        dump_json(document)


def test_a_text_that_looks_like_infinity_is_written() -> None:
    assert dump_json({"a": "Infinity"}) == b'{"a":"Infinity"}'


def test_a_repr_holds_no_payload() -> None:
    assert "hunter2" not in repr(record(b"hunter2"))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(_JSON)
def test_what_is_written_reads_as_it_was(document: Any) -> None:
    assert record(dump_json(document)).json() == document


def test_the_signatures_of_the_page_are_those_of_the_code() -> None:
    """docs/interceptors.md, "Signatures": each class with its attributes, methods and their arguments."""
    page = (Path(__file__).parents[2] / "docs" / "interceptors.md").read_text()
    block = page.partition("### Signatures")[2].partition("```python\n")[2].partition("```")[0]
    drawn = [node for node in ast.parse(block).body if isinstance(node, ast.ClassDef)]
    assert len(drawn) == 7
    for node in drawn:
        real = next(
            vars(place)[node.name] for place in (interceptors, record_module, message) if node.name in vars(place)
        )
        annotated = {
            one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
        assert annotated <= {*real.__annotations__, *getattr(real, "__slots__", ()), *dir(real)}, node.name
        for method in (one for one in node.body if isinstance(one, ast.FunctionDef)):
            found = getattr(real, method.name)
            function = found.fget if isinstance(found, property) else found
            arguments = [one.arg for one in (*method.args.args, *method.args.kwonlyargs)]
            assert arguments == list(inspect.signature(function).parameters), f"{node.name}.{method.name}"
