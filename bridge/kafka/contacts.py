"""When each Kafka broker answered last, over all the connections and producers of a worker.

A broker that neither answers nor hangs up is not seen by the one who waits for it: the client goes on waiting, and
asks others. So every question and every answer is noted here, per request, and a broker whose answer stays out is asked
something small every other second (``due``), which tells "slow" from "gone" within seconds.

The event loop's thread owns everything here.
"""

from __future__ import annotations

__all__ = ["Contact", "Contacts"]

import errno
import ssl
import time
from typing import TYPE_CHECKING, Final

from bridge.tls import distrust
from config.error_words import system_number, words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

SUSPECT_NS: Final = 1_500_000_000  # an answer takes milliseconds; an election is noticed within a second
PROBE_EVERY_NS: Final = 2_000_000_000
FORGOTTEN_NS: Final = 600_000_000_000  # a broker that left the cluster and refuses connections: it was taken away


class Contact:
    """What is known of one broker. ``asked_ns`` is when the first question since its last answer was put, 0 when there
    is none; ``written_ns`` when it last answered anything to a batch, be it no. ``held_until_ns`` is until when it has
    asked for no more batches (KIP-219), ``held_ns`` how long it has done so in all."""

    __slots__ = (
        "accepts",
        "answered_ns",
        "asked_ns",
        "broker",
        "held_ns",
        "held_until_ns",
        "host",
        "led",
        "left_ns",
        "port",
        "probed_ns",
        "problem",
        "refuses",
        "written_ns",
    )

    def __init__(self, broker: int, host: str, port: int) -> None:
        self.broker = broker
        self.host = host
        self.port = port
        self.asked_ns = 0
        self.answered_ns = 0
        self.written_ns = 0
        self.held_until_ns = 0
        self.held_ns = 0
        self.probed_ns = 0
        self.left_ns = 0  # since when the cluster does not list it; 0 while it does
        self.problem: str | None = None  # how the last attempt to reach it failed
        self.refuses = False  # its machine says that nobody listens there
        self.accepts = False  # it takes connections, and says nothing on them
        self.led: tuple[tuple[str, int], ...] = ()  # partitions that were its own when it fell silent

    @property
    def listed(self) -> bool:
        """Whether the cluster counts it among its brokers."""
        return not self.left_ns

    def __repr__(self) -> str:
        return f"<Contact {self.broker} at {self.host}:{self.port}>"


class Contacts:
    """All brokers of a cluster. Outlives producers, so that what is known is not lost with one.

    ``troubles`` is what a broker said of a batch that it did not take, by topic and partition; ``rights_missing`` are
    topics whose batches were refused for want of rights. Written by the producer of the moment. ``have_held`` is
    whether any broker has ever asked for no more batches: before that nobody looks up who leads a partition for it."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock_ns = clock_ns
        self.troubles: dict[tuple[str, int], str] = {}
        self.rights_missing: set[str] = set()
        self.have_held = False
        self._known: dict[object, Contact] = {}

    def __iter__(self) -> Iterator[Contact]:
        return iter(list(self._known.values()))

    def get(self, broker: int) -> Contact | None:
        """What is known of a broker."""
        return self._known.get(broker)

    # --- what the client notes ---

    def listed(self, brokers: Iterable[tuple[int, str, int]]) -> None:
        """The cluster's own list of its brokers: id, host, port."""
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
        """A question is put to a broker. Of others than listed ones (a bootstrap address) nothing is noted."""
        contact = self._known.get(broker)
        if contact is not None and not contact.asked_ns:
            contact.asked_ns = self.clock_ns()

    def answered(self, broker: object, *, written: bool = False) -> None:
        """A broker has answered, ``written``: to a batch."""
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
        """A broker could not be asked, or gave no answer."""
        contact = self._known.get(broker)
        if contact is not None:
            contact.problem = words(error)
            if isinstance(error, ssl.SSLCertVerificationError):
                contact.problem = f"it {distrust(error, 'kafka.tls')}"
            contact.refuses = system_number(error) == errno.ECONNREFUSED
            # What says why (TLS, a login) is not frozen, though it takes connections.
            told = isinstance(error, ssl.SSLError) or not getattr(error, "retriable", True)
            contact.accepts = contact.accepts and not contact.refuses and not told

    def hold(self, broker: object, milliseconds: int) -> None:
        """A broker has answered a batch, and asks for no other for so long: a quota is used up. It reads nothing from
        that connection meanwhile, and a batch on another one would go round the quota. Kept here, for the next
        producer has to wait as well."""
        contact = self._known.get(broker)
        if contact is not None:
            self.have_held = True
            now_ns = self.clock_ns()
            until_ns = now_ns + milliseconds * 1_000_000
            contact.held_ns += max(0, until_ns - max(now_ns, contact.held_until_ns))
            contact.held_until_ns = max(until_ns, contact.held_until_ns)

    def held_until_ns(self, broker: object) -> int:
        """Until when a broker wants no batches; 0 or a moment in the past when it takes them."""
        contact = self._known.get(broker)
        return 0 if contact is None else contact.held_until_ns

    def unasked(self) -> None:
        """Nobody can be asked for the moment, the producer being replaced: who has owed an answer for a moment only
        owes none."""
        now_ns = self.clock_ns()
        for contact in self._known.values():
            if contact.asked_ns and now_ns - contact.asked_ns <= SUSPECT_NS:
                contact.asked_ns = 0

    # --- who is to be asked ---

    def due(self, suspects: Collection[int]) -> list[Contact]:
        """Those to ask something small now: whose answer stays out, and ``suspects`` that have said nothing for a
        while. Each at most every other second. What left the cluster for good is forgotten here."""
        now_ns = self.clock_ns()
        for broker, contact in list(self._known.items()):
            gone = contact.left_ns and now_ns - contact.left_ns > FORGOTTEN_NS
            if gone and (not contact.asked_ns or contact.refuses):
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
