"""Connections to all brokers of a cluster: asks many at once, and goes on without silent ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from config.values.addresses import parse_kafka_address
from gateway.admin.errors import AdminError, AdminRetriableError, BrokerSilentError, BrokerUnreachableError
from gateway.admin.link import Link
from gateway.admin.model import Answers, Broker, Unanswered
from gateway.admin.protocol import metadata_api
from gateway.base.process.daemon_thread import begun

if TYPE_CHECKING:
    from gateway.admin.login import AdminLogin

T = TypeVar("T")

_THREAD: Final = "kafka-admin"  # a hanging connect does not delay the end of the process
_HEDGE_S: Final = 1.0  # after this time without an answer another broker is asked too
_PATIENCE_S: Final = 3.0  # once a broker has answered, the others get this time
_CONTROLLER_S: Final = 5.0  # longest wait for the controller
_MEMORY_S: Final = 5.0  # a silent broker is not asked again for this time


class Links:
    """Connections to all brokers, each made when needed.

    Blocks; any thread may use it. ``timeout_s`` ends every wait for an answer.
    """

    def __init__(self, bootstrap: Iterable[str], login: AdminLogin, client_id: str, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._login = login
        self._client_id = client_id
        self._bootstrap: list[Link] = []
        for text in bootstrap:
            address = parse_kafka_address(text)
            self._bootstrap.append(Link(address.host, address.port, f"Kafka at {text}", login, client_id))
        self._links: dict[tuple[str, int, bool], Link] = {}  # by host, port, and whether it is for the controller
        self._silent: dict[Link, tuple[float, AdminError]] = {}  # when and how the last question failed
        self._brokers: dict[int, Broker] | None = None
        self._closed = False

    def close(self) -> None:
        """End every connection and waiting question; questions of other threads that come later are refused."""
        self._closed = True
        for link in (*self._bootstrap, *self._links.values()):
            link.close()

    # --- who is there ---

    @property
    def brokers(self) -> dict[int, Broker]:
        """The brokers by number. At first they are learned from the first bootstrap address that answers; if none does,
        raises the most informative error."""
        if self._brokers is None:
            found = self._first_answer(
                self._bootstrap, lambda: metadata_api.MetadataRequest(topics=[]), self.timeout_s, hedge_s=0.0
            )
            self._brokers = {one.node_id: Broker(one.node_id, one.host, one.port, one.rack) for one in found.brokers}
        return self._brokers

    def note(self, brokers: Iterable[Broker]) -> None:
        """Use these brokers from now on."""
        self._brokers = {broker.id: broker for broker in brokers}

    def link(self, broker: int, *, controller: bool = False) -> Link:
        """The connection to a broker. Requests that it forwards to the controller have one of their own, because a
        hanging controller would delay every later request. Raises BrokerUnreachableError for a broker that the cluster
        does not list."""
        found = self.brokers.get(broker)
        if found is None:
            raise BrokerUnreachableError(f"Broker {broker} is not registered: it is down, or it left the cluster.")
        place = (found.host, found.port, controller)
        if place not in self._links:
            name = f"Broker {broker} ({found.address})"
            if controller:
                name = f"The active controller, asked through broker {broker} ({found.address}),"
            made = Link(found.host, found.port, name, self._login, self._client_id)
            made = self._links.setdefault(place, made)  # another thread may have been faster
            if self._closed:
                made.close()
        return self._links[place]

    # --- asking ---

    def ask(self, broker: int, request: Any, *, timeout_s: float | None = None, **options: Any) -> Any:
        """One broker's answer. Raises AdminError, at once for a recently silent broker."""
        return self._ask(self.link(broker), request, self.timeout_s if timeout_s is None else timeout_s, options)

    def ask_any(self, make: Callable[[], Any], *, controller: bool = False, **options: Any) -> Any:
        """The first answer of any broker, for questions with the same answer everywhere. Slow brokers are not waited
        for: the next one is asked too.

        ``controller``: brokers forward the question to the controller. A controller that has just frozen delays them
        for half a minute; it gets five seconds."""
        timeout_s = min(self.timeout_s, _CONTROLLER_S) if controller else self.timeout_s
        links = self._ranked(controller=controller)
        try:
            return self._first_answer(links, make, timeout_s, hedge_s=_HEDGE_S, **options)
        except AdminRetriableError as error:
            if not controller:
                raise
            raise BrokerSilentError(
                f"The active controller did not answer {len(links)} brokers within {timeout_s:g} s: it is frozen, or "
                "another one is being elected. Brokers wait up to 30 s for a hanging controller "
                "(controller.socket.timeout.ms). Check brokers that do not answer first, then try again."
            ) from error

    def ask_one(self, request: Any, **options: Any) -> Any:
        """The controller's answer through one broker that has answered recently. Sent once, for changes."""
        return self._ask(self._ranked(controller=True)[0], request, self.timeout_s, {"again": False, **options})

    def _ranked(self, *, controller: bool) -> list[Link]:
        """A connection to each broker, in the order of attempts: those that failed lately come last."""

        def rank(number: int) -> tuple[bool, bool, bool]:
            link = self.link(number, controller=controller)
            return link in self._silent, self.link(number) in self._silent, not link.connected

        return [self.link(number, controller=controller) for number in sorted(self.brokers, key=rank)]

    def ask_each(self, question: Callable[[int], T], brokers: Iterable[int] | None = None) -> Answers[T]:
        """Ask many brokers (default: all) at once; ``question`` calls ``ask`` for one, by its number. Once others have
        answered, a silent broker gets three more seconds, and is then listed as unanswered."""
        numbers = self.brokers if brokers is None else brokers
        began = {begun(partial(question, number), _THREAD): number for number in numbers}
        deadline = time.monotonic() + self.timeout_s
        left: set[Future[T]] = set(began)
        answers: dict[int, T] = {}
        unanswered: list[Unanswered] = []
        while left and (seconds := deadline - time.monotonic()) > 0:
            done, left = wait(left, timeout=seconds, return_when=FIRST_COMPLETED)
            for future in done:
                number = began[future]
                try:
                    answers[number] = future.result()
                except AdminError as error:
                    unanswered.append(self._unanswered(number, error))
                else:
                    deadline = min(deadline, time.monotonic() + _PATIENCE_S)
        waited = f"{_PATIENCE_S:g} s while others did" if answers else f"{self.timeout_s:g} s"
        for future in left:
            number = began[future]
            late = BrokerSilentError(
                f"{self.link(number).name} did not answer within {waited}. A frozen or overloaded process still "
                "accepts connections: check its log and CPU, and restart it if it hangs."
            )
            self._silent[self.link(number)] = time.monotonic(), late
            unanswered.append(self._unanswered(number, late))
        return Answers(dict(sorted(answers.items())), tuple(sorted(unanswered, key=lambda one: one.id or 0)))

    def _unanswered(self, number: int, error: AdminError) -> Unanswered:
        broker = self.brokers.get(number)
        address = broker.address if broker is not None else "address unknown"
        return Unanswered(number, address, str(error), isinstance(error, BrokerSilentError))

    def _ask(self, link: Link, request: Any, timeout_s: float, options: dict[str, Any]) -> Any:
        """``link.ask``; within ``_MEMORY_S`` of a failure that error again, without asking."""
        at, error = self._silent.get(link, (0.0, None))
        if error is not None and time.monotonic() - at < _MEMORY_S:
            raise error.with_traceback(None)
        try:
            answer = link.ask(request, timeout_s, **options)
        except AdminRetriableError as failure:
            self._silent[link] = time.monotonic(), failure
            raise
        self._silent.pop(link, None)
        return answer

    def _first_answer(
        self, links: list[Link], make: Callable[[], Any], timeout_s: float, *, hedge_s: float, **options: Any
    ) -> Any:
        """The first answer of any of these; each is asked ``hedge_s`` after the one before, or at once when that one
        failed."""
        deadline = time.monotonic() + timeout_s
        waiting = list(links)
        asked: set[Future[Any]] = set()
        failures: list[AdminError] = []
        while waiting or asked:
            if waiting:
                asked.add(begun(partial(self._ask, waiting.pop(0), make(), timeout_s, options), _THREAD))
            patience = min(hedge_s, deadline - time.monotonic()) if waiting else deadline - time.monotonic()
            done, asked = wait(asked, timeout=max(0.0, patience), return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    return future.result()
                except AdminRetriableError as error:
                    failures.append(error)
                except AdminError as error:
                    if not waiting and not asked:
                        raise
                    failures.append(error)
            if time.monotonic() >= deadline:
                break
        raise _most_telling(failures, timeout_s, [link.name for link in links])


def _most_telling(failures: list[AdminError], timeout_s: float, names: list[str]) -> AdminError:
    """The error to raise if nobody answered: a refusal first, then a silence, then a refused connection."""
    final = [error for error in failures if not isinstance(error, AdminRetriableError)]
    if final:
        return final[0]
    if not failures:
        return BrokerSilentError(
            f"{', '.join(names)} did not answer within {timeout_s:g} s. Are the brokers frozen, or are packets "
            "lost on the way? Check that they run, the network, and admin.timeout."
        )
    if len(failures) == 1:
        return failures[0]
    lines = "".join(f"\n  - {error}" for error in failures)
    return BrokerUnreachableError(f"No broker answers:{lines}")
