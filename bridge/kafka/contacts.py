"""Notes when each Kafka broker answered last, over all connections and producers of a worker.

A client does not report a broker that neither answers nor closes the connection. So each request and each answer is
noted here. A broker with an overdue answer gets a small request every other second (``due``), which distinguishes a
slow broker from a stopped one within seconds.

The event loop's thread owns everything here.
"""

import errno
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from bridge.tls import distrust
from config.error_words import system_number, words

SUSPECT_NS: Final = 1_500_000_000  # an answer takes milliseconds; an election is noticed within a second
PROBE_EVERY_NS: Final = 2_000_000_000
FORGOTTEN_NS: Final = 600_000_000_000  # for a broker that left the cluster and refuses connections


class Contact:
    """One broker. ``asked_ns`` is the time of the first question since its last answer, or 0.

    ``written_ns`` is its last answer to a batch, refusals included. It has asked for no batches until ``held_until_ns``
    (KIP-219), in all for ``held_ns``."""

    __slots__ = (
        "accepts", "answered_ns", "asked_ns", "broker", "held_ns", "held_until_ns", "host", "led", "left_ns", "port",
        "probed_ns", "problem", "refuses", "written_ns",
    )  # fmt: skip

    def __init__(self, broker: int, host: str, port: int) -> None:
        self.broker = broker
        self.host = host
        self.port = port
        self.asked_ns = 0  # of the first question without an answer; 0 without one
        self.answered_ns = 0  # of the last answer to anything
        self.written_ns = 0  # of the last answer to a batch
        self.held_until_ns = 0  # the end of its last request for no batches
        self.held_ns = 0  # how long these were, in all
        self.probed_ns = 0  # of the last probe
        self.left_ns = 0  # when the cluster stopped listing it; 0 while it does
        self.problem: str | None = None  # why the last attempt failed
        self.refuses = False  # its machine refuses connections
        self.accepts = False  # it accepts connections and does not answer on them
        self.led: tuple[tuple[str, int], ...] = ()  # partitions that it led when it stopped answering

    @property
    def listed(self) -> bool:
        return not self.left_ns

    def __repr__(self) -> str:
        return f"<Contact {self.broker} at {self.host}:{self.port}>"


class Contacts:
    """All brokers of a cluster. Outlives each producer.

    ``troubles`` has a broker's reason for not taking a batch, by topic and partition. ``rights_missing`` has topics
    whose batches were refused because rights are missing. The present producer writes both. ``have_held``: a broker has
    asked for no batches at least once; before that, senders skip the check."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock_ns = clock_ns
        self.troubles: dict[tuple[str, int], str] = {}  # why a partition takes no batch
        self.rights_missing: set[str] = set()  # topics
        self.have_held = False  # a broker has asked for no batches at least once
        self._known: dict[object, Contact] = {}  # by node id

    def __iter__(self) -> Iterator[Contact]:
        return iter(list(self._known.values()))

    def get(self, broker: int) -> Contact | None:
        return self._known.get(broker)

    # --- what the client notes ---

    def listed(self, brokers: Iterable[tuple[int, str, int]]) -> None:
        """Note the brokers that the cluster lists: id, host, port."""
        there: set[object] = set()
        for broker, host, port in brokers:
            there.add(broker)
            contact = self._known.get(broker)
            if contact is None:
                self._known[broker] = Contact(broker, host, port)
            else:
                contact.host, contact.port, contact.left_ns = host, port, 0
        if len(there) != len(self._known):
            now_ns = self.clock_ns()
            for known, contact in self._known.items():
                if known not in there and not contact.left_ns:
                    contact.left_ns = now_ns

    def asked(self, broker: object) -> None:
        """Note a request to a broker. Bootstrap addresses are not noted."""
        contact = self._known.get(broker)
        if contact is not None and not contact.asked_ns:
            contact.asked_ns = self.clock_ns()

    def answered(self, broker: object, *, written: bool = False) -> None:
        """Note an answer of a broker; ``written``: to a batch."""
        contact = self._known.get(broker)
        if contact is None:
            return
        contact.answered_ns = now_ns = self.clock_ns()
        if written:
            contact.written_ns = now_ns
        if contact.asked_ns or contact.problem is not None:
            contact.asked_ns = 0
            contact.problem = None
            contact.refuses = contact.accepts = False
            contact.led = ()

    def failed(self, broker: object, error: BaseException) -> None:
        """Note that a request to a broker failed or had no answer."""
        contact = self._known.get(broker)
        if contact is not None:
            contact.problem = words(error)
            if isinstance(error, ssl.SSLCertVerificationError):
                contact.problem = f"it {distrust(error, 'kafka.tls')}"
            contact.refuses = system_number(error) == errno.ECONNREFUSED
            # A broker that gives a reason (TLS, a login) is not frozen.
            reasoned = isinstance(error, ssl.SSLError) or not getattr(error, "retriable", True)
            contact.accepts = contact.accepts and not contact.refuses and not reasoned

    def hold(self, broker: object, milliseconds: int) -> None:
        """Note that a broker asks for no batches for a time: a quota is used up.

        It does not read from that connection meanwhile. Another connection would evade the quota, so the next producer
        waits too."""
        contact = self._known.get(broker)
        if contact is not None:
            self.have_held = True
            now_ns = self.clock_ns()
            until_ns = now_ns + milliseconds * 1_000_000
            contact.held_ns += max(0, until_ns - max(now_ns, contact.held_until_ns))
            contact.held_until_ns = max(until_ns, contact.held_until_ns)

    def held_until_ns(self, broker: object) -> int:
        """When a broker takes batches again; in the past if it does now."""
        contact = self._known.get(broker)
        return 0 if contact is None else contact.held_until_ns

    def unasked(self) -> None:
        """Note that the producer is being replaced: drop questions that are not overdue yet."""
        now_ns = self.clock_ns()
        for contact in self._known.values():
            if contact.asked_ns and now_ns - contact.asked_ns <= SUSPECT_NS:
                contact.asked_ns = 0

    # --- who is to be asked ---

    def due(
        self, suspects: Collection[int], has_replicas: Callable[[int], bool] = lambda _broker: False
    ) -> list[Contact]:
        """Brokers to probe now: those with an overdue answer, and silent ``suspects``. Each at most every other second.

        Forgets brokers that have left the cluster for good: no partition in use ``has_replicas`` on them."""
        now_ns = self.clock_ns()
        for broker, contact in list(self._known.items()):
            gone = contact.left_ns and now_ns - contact.left_ns > FORGOTTEN_NS
            if gone and (not contact.asked_ns or contact.refuses) and not has_replicas(contact.broker):
                del self._known[broker]
        found = []
        for contact in self._known.values():
            if contact.asked_ns:
                wanted = now_ns - contact.asked_ns > SUSPECT_NS
            else:
                wanted = contact.broker in suspects and now_ns - contact.answered_ns > SUSPECT_NS
            if wanted and now_ns - contact.probed_ns > PROBE_EVERY_NS:
                contact.probed_ns = now_ns
                found.append(contact)
        return found
