"""The brokers of a cluster: whom to ask, many at once, and what to do about one that does not answer."""

from __future__ import annotations

__all__ = ["Links"]

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from config.values.addresses import parse_kafka_address
from gateway.admin.errors import AdminError, AdminRetriableError, BrokerSilentError, BrokerUnreachableError
from gateway.admin.link import Link
from gateway.admin.model import Answers, Broker, Unanswered
from gateway.admin.protocol import MetadataRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from gateway.admin.login import AdminLogin

T = TypeVar("T")

_HEDGE_S: Final = 1.0  # without an answer for so long, another broker is asked the same
_PATIENCE_S: Final = 3.0  # a view waits so long for the others once one broker has answered
_CONTROLLER_S: Final = 5.0  # a view waits so long for the controller
_MEMORY_S: Final = 5.0  # a broker that was silent is not waited for again so soon


class Links:
    """Connections to all brokers, each made when it is needed.

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
        self._links: dict[tuple[str, int, bool], Link] = {}
        self._silent: dict[Link, tuple[float, AdminError]] = {}
        self.brokers: dict[int, Broker] = {}

    def close(self) -> None:
        """End every connection, and whoever waits on one."""
        for link in (*self._bootstrap, *self._links.values()):
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- who is there ---

    def meet(self) -> None:
        """Learn the brokers from the first bootstrap address that answers. Raises the most telling error when none
        does."""
        self._learn(self._first(self._bootstrap, lambda: MetadataRequest(topics=[]), self.timeout_s, hedge_s=0.0))

    def _learn(self, metadata: Any) -> None:
        self.note(Broker(found.node_id, found.host, found.port, found.rack) for found in metadata.brokers)

    def note(self, brokers: Iterable[Broker]) -> None:
        """These are the brokers from now on."""
        self.brokers = {broker.id: broker for broker in brokers}

    def link(self, broker: int, *, controller: bool = False) -> Link:
        """The connection to a broker; another one for what it passes on to the controller, since a controller that
        hangs would hold up everything behind that question. Raises BrokerUnreachableError for a broker that the
        cluster does not list."""
        found = self.brokers.get(broker)
        if found is None:
            raise BrokerUnreachableError(f"Broker {broker} is not registered: it is down, or it left the cluster.")
        place = (found.host, found.port, controller)
        if place not in self._links:
            name = f"Broker {broker} ({found.address})"
            if controller:
                name = f"The active controller, asked through broker {broker} ({found.address}),"
            made = Link(found.host, found.port, name, self._login, self._client_id)
            self._links.setdefault(place, made)  # another thread may have been first
        return self._links[place]

    # --- asking ---

    def ask(self, broker: int, request: Any, *, timeout_s: float | None = None, **options: Any) -> Any:
        """One broker's answer. Raises AdminError; at once for a broker that was silent a moment ago."""
        return self._ask(self.link(broker), request, self.timeout_s if timeout_s is None else timeout_s, options)

    def ask_any(self, make: Callable[[], Any], *, controller: bool = False, **options: Any) -> Any:
        """The first answer that some broker gives: the next one is asked when one takes its time. For questions
        whose answer is the same everywhere. ``controller``: they pass it on to the controller, which may hang although
        no broker does, for half a minute when it has just been frozen; it is waited for five seconds."""
        timeout_s = min(self.timeout_s, _CONTROLLER_S) if controller else self.timeout_s
        links = self._ranked(controller=controller)
        try:
            return self._first(links, make, timeout_s, hedge_s=_HEDGE_S, **options)
        except AdminRetriableError as error:
            if not controller:
                raise
            raise BrokerSilentError(
                f"The active controller does not answer, asked through {len(links)} brokers for {timeout_s:g} s: it is "
                "frozen, or another is being elected. Brokers keep what they pass on to one that hangs for up to 30 s "
                "(controller.socket.timeout.ms). Look at a broker that does not answer first, and ask again."
            ) from error

    def ask_one(self, request: Any, **options: Any) -> Any:
        """The answer of the controller through one broker that answers these days, asked once: for what changes
        something."""
        return self._ask(self._ranked(controller=True)[0], request, self.timeout_s, {"again": False, **options})

    def _ranked(self, *, controller: bool) -> list[Link]:
        """Connections in the order in which to try them."""

        def rank(number: int) -> tuple[bool, bool, bool]:
            link = self.link(number, controller=controller)
            return link in self._silent, self.link(number) in self._silent, not link.connected

        return [self.link(number, controller=controller) for number in sorted(self.brokers, key=rank)]

    def ask_each(self, questions: dict[int, Callable[[], T]]) -> Answers[T]:
        """Ask many brokers at once; ``questions`` call ``ask`` each for its own. A broker that is silent when others
        have answered is waited for three more seconds, and listed with the others that gave no answer."""
        began = {_begun(question): number for number, question in questions.items()}
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
                f"{self.link(number).name} did not answer within {waited}. A process that is frozen or swamped still "
                "takes connections: look at its log and its CPU, and restart it if it is stuck."
            )
            self._silent[self.link(number)] = time.monotonic(), late
            unanswered.append(self._unanswered(number, late))
        return Answers(dict(sorted(answers.items())), tuple(sorted(unanswered, key=lambda one: one.id or 0)))

    def _unanswered(self, number: int, error: AdminError) -> Unanswered:
        broker = self.brokers.get(number)
        address = broker.address if broker is not None else "address unknown"
        return Unanswered(number, address, str(error), isinstance(error, BrokerSilentError))

    def _ask(self, link: Link, request: Any, timeout_s: float, options: dict[str, Any]) -> Any:
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

    def _first(
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
                asked.add(_begun(partial(self._ask, waiting.pop(0), make(), timeout_s, options)))
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


def _begun(work: Callable[[], T]) -> Future[T]:
    """The work in a thread of its own, which does not hold up the end of the process: a connect that hangs is left."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - it is the waiter's
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="kafka-admin", daemon=True).start()
    return future


def _most_telling(failures: list[AdminError], timeout_s: float, names: list[str]) -> AdminError:
    """What to say when nobody answered: a refusal before a silence before a refused connection."""
    final = [error for error in failures if not isinstance(error, AdminRetriableError)]
    if final:
        return final[0]
    if not failures:
        return BrokerSilentError(
            f"{', '.join(names)} did not answer within {timeout_s:g} s. Are the brokers frozen, or is something "
            "between that swallows packets? Check that they run, the network, and admin.timeout."
        )
    if len(failures) == 1:
        return failures[0]
    lines = "".join(f"\n  - {error}" for error in failures)
    return BrokerUnreachableError(f"No broker answers:{lines}")
