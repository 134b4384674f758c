"""Interceptors: they read, change, multiply or drop records between MQTT and Kafka.

The model is Kafka's ``ProducerInterceptor``: ``configure`` once, ``on_send`` for every record before it enters a
batch, ``on_acknowledgement`` once a batch is durable or given up, ``close`` at the end. Interceptors form a chain per
route, in the order of the settings: first those for all routes, then the route's own.

Each interceptor has a policy for its failures. An exception is counted and logged with a rate limit. Then the record
passes unchanged (``pass``), is dropped, becomes a dead letter, or the worker stops.

The ledger counts a message once, whatever its records become. So a dead letter is the whole message with its original
bytes. None of the message's records is in Kafka beside it, and its replay repeats nothing.

Interceptors run on the event loop's thread and must not block: no message moves during ``on_send``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "INTERCEPTOR_ERROR",
    "OTHER_REASON",
    "OUTCOMES",
    "TIMED_ONE_IN",
    "Chain",
    "Chains",
    "Context",
    "Drop",
    "Fault",
    "Interceptor",
    "InterceptorError",
    "Outcome",
    "Policy",
    "RecordMetadata",
    "Stage",
    "Table",
]

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

import structlog

from bridge.errors import BridgeError
from bridge.record import Record, check_parts
from config.values.model import Table  # the base of Options, for those who write interceptors

if TYPE_CHECKING:
    from pydantic import BaseModel

    from bridge.routing.template import Template

log = structlog.get_logger("interceptors")

Policy = Literal["pass", "drop", "dead_letter", "stop"]

INTERCEPTOR_ERROR: Final = "interceptor_error"
"""Why a message is filtered whose interceptor failed under the policy ``drop``."""
OTHER_REASON: Final = "other"
"""In place of undeclared reasons of an interceptor, because a metric's labels are limited."""
OUTCOMES: Final = ("pass", "split", "drop", "error", "acknowledgement_error")
"""The outcomes of a call: the label ``outcome`` of ``gateway_intercept_total``."""
TIMED_ONE_IN: Final = 32
"""One message in so many is timed, because reading the clock costs as much as a simple filter."""


class InterceptorError(BridgeError):
    """An interceptor raised, or returned a wrong value. The sentence names route, position and cause."""


class Drop:
    """The answer of ``on_send`` that drops a record. ``reason`` is one of ``drop_reasons``. Make it once, and return
    the same object each time."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"Drop({self.reason!r})"


class Fault(NamedTuple):
    """A message whose interceptor failed. With ``stop`` the worker stops."""

    error: InterceptorError
    stop: bool


class RecordMetadata(NamedTuple):
    """The place of a batch. ``base_offset`` is the offset of its first record, -1 for an abandoned batch."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Context:
    """An interceptor's route, instance and name. ``template`` reads a ``${…}`` template as in the route's settings
    (with ``${device}`` and ``${instance}``) and raises ConfigError."""

    route: str
    instance: str
    name: str
    template: Callable[[str], Template]


class Interceptor:
    """The base of interceptors, with defaults. Inheritance is optional: the shape counts.

    ``Options`` is a model (a ``Table``) that the settings are checked against; without one, ``configure`` gets them as
    a mapping. ``drop_reasons`` lists the reasons of its ``Drop`` answers; it may be set in ``configure``.
    """

    Options: ClassVar[type[BaseModel] | None] = None
    drop_reasons: Sequence[str] = ()

    def configure(self, options: Any, context: Context) -> None:
        """Take the settings; called once, before anything else. Raise ValueError with a sentence (it may begin with
        the option's name and a colon) for what cannot be right: the worker then does not start."""

    def on_send(self, record: Record) -> Record | Sequence[Record] | Drop:
        """Decide about one record: itself, another, several in its place (a non-empty list), or a ``Drop``.

        May raise; may not block, nor change the record or anything in it."""
        raise NotImplementedError

    def on_acknowledgement(self, metadata: RecordMetadata, error: BridgeError | None) -> None:
        """Learn that a batch with records of this route is durable (``error`` None), or that a record was given up.
        What it raises is logged and counted, no more. Interceptors that do not override it cost nothing here."""

    def close(self) -> None:
        """Release the resources of ``configure``; called once, at the end."""


Outcome = Record | list[Record] | Drop | Fault


class Stage:
    """One interceptor at its place in a chain, with its policy and its counts.

    ``label`` stands for it in metrics, ``where`` in sentences. ``observe`` takes nanoseconds and for how many calls
    they stand."""

    __slots__ = (
        "acknowledgement_errors", "close", "dropped", "errors", "label", "observe", "on_acknowledgement", "on_send",
        "passed", "policy", "reasons", "split", "where",
    )  # fmt: skip

    def __init__(self, interceptor: Any, *, label: str, where: str, policy: Policy) -> None:
        self.on_send: Callable[[Record], object] = interceptor.on_send
        acknowledge = getattr(interceptor, "on_acknowledgement", None)
        inherited = getattr(type(interceptor), "on_acknowledgement", None) is Interceptor.on_acknowledgement
        self.on_acknowledgement: Callable[[RecordMetadata, BridgeError | None], None] | None = (
            None if inherited else acknowledge
        )
        self.close: Callable[[], None] | None = getattr(interceptor, "close", None)
        self.label = label
        self.where = where
        self.policy = policy
        self.reasons = frozenset(getattr(interceptor, "drop_reasons", ()))  # of its drops; others become OTHER_REASON
        self.observe: Callable[[int, int], None] = _unobserved  # nanoseconds of a call, and for how many it stands
        self.passed = self.split = self.dropped = self.errors = self.acknowledgement_errors = 0

    def judge(self, answer: object) -> Record | list[Record] | Drop:
        """What goes on after an answer of ``on_send``; counts it. Raises for one that no interceptor may return."""
        if isinstance(answer, Record):
            check_parts(answer)
            self.passed += 1
            return answer
        if isinstance(answer, Drop):
            drop = answer if answer.reason in self.reasons else Drop(OTHER_REASON)
            self.dropped += 1
            return drop
        if isinstance(answer, list | tuple) and answer and all(isinstance(one, Record) for one in answer):
            for one in answer:
                check_parts(one)
            self.split += 1
            return list(answer)
        what = "an empty list" if isinstance(answer, list | tuple) and not answer else f"{type(answer).__name__}"
        raise TypeError(f"on_send returned {what}: a Record, a list of them or a Drop is wanted")

    def fail(self, record: Record, error: BaseException) -> Record | Drop | Fault:
        """Apply the policy to a record whose interceptor failed."""
        self.errors += 1
        sentence = f"{self.where} failed with {_told(error)}"
        log.warning("interceptor_failed", error=sentence, policy=self.policy, repeat_key=self.where)
        match self.policy:
            case "pass":
                return record
            case "drop":
                return Drop(INTERCEPTOR_ERROR)
            case "dead_letter" | "stop":
                failure = InterceptorError(sentence)
                failure.__cause__ = error
                return Fault(failure, stop=self.policy == "stop")

    def step(self, record: Record) -> Record | list[Record] | Drop | Fault:
        """Call the interceptor once, and count the outcome."""
        try:
            return self.judge(self.on_send(record))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - anything may come out of a plug-in; the policy says what then
            return self.fail(record, error)

    def counts(self) -> tuple[int, ...]:
        """In the order of OUTCOMES."""
        return self.passed, self.split, self.dropped, self.errors, self.acknowledgement_errors


class Chain:
    """The interceptors of one route, in order. ``run`` decides about a message."""

    __slots__ = ("_calls", "_until_timed", "acknowledging", "filtered", "route", "stages")

    def __init__(self, route: str, stages: Iterable[Stage]) -> None:
        self.route = route
        self.stages = tuple(stages)
        self.acknowledging = tuple(stage for stage in self.stages if stage.on_acknowledgement is not None)
        self.filtered = [0, 0, 0]  # messages dropped, by QoS; counted by whoever drops them
        self._calls = tuple((stage.on_send, stage, number) for number, stage in enumerate(self.stages, 1))
        self._until_timed = 1  # calls of ``run`` until one is timed

    def run(self, record: Record) -> Outcome:
        """Send a record through. Returns what is to be written: a record, or several; else a Drop or a Fault.

        Never raises what an interceptor does."""
        self._until_timed -= 1
        if not self._until_timed:
            self._until_timed = TIMED_ONE_IN
            return self._walk(0, record, timed=True)
        for on_send, stage, number in self._calls:
            try:
                answer = on_send(record)
                if answer is record:
                    stage.passed += 1
                else:
                    answer = stage.judge(answer)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - as in Stage.step, which this loop saves a call per record
                answer = stage.fail(record, error)
            if isinstance(answer, Record):
                record = answer
            elif isinstance(answer, list):
                return self._fan_out(number, answer, timed=False)
            else:
                return answer
        return record

    def _walk(self, start: int, record: Record, *, timed: bool) -> Outcome:
        """Run the record through the stages from number ``start`` on; with ``timed`` report each call's time."""
        for number in range(start, len(self.stages)):
            stage = self.stages[number]
            if timed:
                started_ns = time.perf_counter_ns()
                answer = stage.step(record)
                stage.observe(time.perf_counter_ns() - started_ns, TIMED_ONE_IN)
            else:
                answer = stage.step(record)
            if isinstance(answer, list):
                return self._fan_out(number + 1, answer, timed=timed)
            if not isinstance(answer, Record):
                return answer
            record = answer
        return record

    def _fan_out(self, start: int, records: list[Record], *, timed: bool) -> Outcome:
        """Run the rest of the chain for each of several records. A fault of one is a fault of the message."""
        done: list[Record] = []
        dropped: Drop | None = None
        for record in records:
            answer = self._walk(start, record, timed=timed)
            if isinstance(answer, Fault):
                return answer
            if isinstance(answer, Drop):
                dropped = answer
            elif isinstance(answer, list):
                done += answer
            else:
                done.append(answer)
        if done:
            return done if len(done) > 1 else done[0]
        assert dropped is not None
        return dropped

    def acknowledged(self, metadata: RecordMetadata, error: BridgeError | None) -> None:
        """Call the ``on_acknowledgement`` of interceptors that have one. ``error`` None: durable. Never raises."""
        for stage in self.acknowledging:
            assert stage.on_acknowledgement is not None
            try:
                stage.on_acknowledgement(metadata, error)
            except KeyboardInterrupt:
                raise
            except BaseException as problem:  # noqa: BLE001 - the batch is durable, whatever a plug-in makes of it
                stage.acknowledgement_errors += 1
                sentence = f"{stage.where} failed with {_told(problem)}"
                log.warning("interceptor_acknowledgement_failed", error=sentence, repeat_key=stage.where)

    def spoilt(self, error: Exception) -> Fault:
        """The outcome for a record that an interceptor changed in place so that no batch takes it."""
        failure = InterceptorError(f"An interceptor of route {self.route!r} changed a record in place: {_told(error)}")
        failure.__cause__ = error
        log.warning("interceptor_failed", error=str(failure), policy="dead_letter", repeat_key=self.route)
        return Fault(failure, stop=False)

    @property
    def drop_reasons(self) -> tuple[str, ...]:
        """Every reason for which this chain may drop a message."""
        reasons = dict.fromkeys(reason for stage in self.stages for reason in sorted(stage.reasons))
        return (*reasons, INTERCEPTOR_ERROR, OTHER_REASON)

    def __repr__(self) -> str:
        return f"<Chain of {self.route!r}: {' → '.join(stage.label for stage in self.stages)}>"


class Chains:
    """The chains of all routes that have interceptors: made once for a worker, and shared by whatever moves records.

    ``listening``: routes of which some interceptor wants to hear of acknowledgements."""

    def __init__(self, chains: Mapping[str, Chain]) -> None:
        self._chains = dict(chains)
        self.get = self._chains.get
        self.listening = frozenset(chain.route for chain in self if chain.acknowledging)
        self._closed = False
        self._past: Counter[tuple[str, ...]] = Counter()  # counts of chains that were replaced
        self._past_filtered: Counter[tuple[str, ...]] = Counter()

    def __iter__(self) -> Iterator[Chain]:
        return iter(self._chains.values())

    def stored(self, route: str, metadata: RecordMetadata) -> None:
        """Report a durable batch of the route."""
        if route in self.listening:
            self._chains[route].acknowledged(metadata, None)

    def given_up(self, route: str, metadata: RecordMetadata, error: BridgeError) -> None:
        """Report a record of the route that will not be in its topic."""
        if route in self.listening:
            self._chains[route].acknowledged(metadata, error)

    def succeed(self, former: Chains, keep: Collection[str]) -> Chains:
        """Take the place of ``former``. Its chains of the routes in ``keep`` stay, for messages that are still to come
        for them; the counts go on where they were. Returns the chains that have been replaced, for the caller to close
        once nothing of theirs is on its way."""
        gone: dict[str, Chain] = {}
        for route, chain in former._chains.items():
            successor = self._chains.get(route)
            if successor is None and route in keep:
                self._chains[route] = chain
            elif successor is not chain:
                gone[route] = chain
        # A chain that stays has its counts: the past has what the former chains counted beyond them.
        self._past, self._past_filtered = Counter(), Counter()
        rows, filtered = self.rows(), self.filtered_rows()
        self._past = Counter({row: count - rows[row] for row, count in former.rows().items()})
        self._past_filtered = Counter({row: count - filtered[row] for row, count in former.filtered_rows().items()})
        self.listening = frozenset(chain.route for chain in self if chain.acknowledging)
        return Chains(gone)

    def filtered_rows(self) -> Counter[tuple[str, ...]]:
        """Dropped messages, by route and QoS."""
        rows = self._past_filtered.copy()
        for chain in self:
            rows.update({(chain.route, str(qos)): count for qos, count in enumerate(chain.filtered)})
        return rows

    def rows(self) -> Counter[tuple[str, ...]]:
        """Calls, by interceptor and outcome."""
        rows = self._past.copy()
        for chain in self:
            for stage in chain.stages:
                rows.update({(stage.label, outcome): n for outcome, n in zip(OUTCOMES, stage.counts(), strict=True)})
        return rows

    def close(self) -> None:
        """Close every interceptor, once. Never raises; exceptions are logged."""
        if self._closed:
            return
        self._closed = True
        for chain in self:
            for stage in chain.stages:
                if stage.close is None:
                    continue
                try:
                    stage.close()
                except Exception as error:  # noqa: BLE001 - the others are closed all the same
                    log.warning("interceptor_close_failed", error=f"{stage.where}: {type(error).__name__}: {error}")


def _told(error: BaseException) -> str:
    """Class and text of an exception, for a log or an error. Never raises."""
    try:
        told = f"{type(error).__name__}: {error}"
        return told.encode(errors="backslashreplace").decode()  # half of a surrogate pair could not be written
    except Exception:  # noqa: BLE001 - a plug-in's own exception may fail at that too
        return type(error).__name__


def _unobserved(_elapsed_ns: int, _calls: int) -> None:
    """Does nothing: the default of ``observe``."""
