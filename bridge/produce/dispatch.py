"""Finds the slot for the records of an MQTT topic: the table of the hot path, and the slow lane.

The hot path reads slot, key and headers from ``caches[flag nibble][topic bytes]``. ``entry`` fills the table when a
topic is new. Some routes need more than the topic: properties or payload in a template, the receive time in a header.
Their messages take the slow lane, ``slow``, one by one, into the same slots.

A route with interceptors has its own part of the slow lane. Results that depend on the topic alone are cached. The
record is built and goes through the chain; the resulting records enter the same slots.

A Kafka topic made from a template may have no known partitions yet. Its messages are parked in order until the
partitions are known, and their spans wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

from bridge import wire
from bridge.errors import BridgeError
from bridge.interceptors import Chain, Chains, Drop, Fault, Outcome
from bridge.message import NO_PROPERTIES, MessageView, Properties
from bridge.produce.dead_letter import DeadLetterDraft, DeadLetters
from bridge.produce.holding import HeldMessage, Holding
from bridge.produce.parking import Parking, TopicLocator, mark_unfinished
from bridge.produce.partitioner import partition_for
from bridge.produce.timestamps import AHEAD_MS, noting
from bridge.record import Record, check_parts
from bridge.routing.headers import property_headers
from bridge.routing.topic_rule import RouteError
from bridge.wire import DeadLetterReason, Header

if TYPE_CHECKING:
    from bridge.ports import Headers
    from bridge.produce.accumulator import Accumulator, Slot
    from bridge.routing.router import Route, Router, TopicPlan
    from config.settings import Settings

NO_CHAINS: Final = Chains({})
# Caches are bounded by their number of entries, so the size of an entry must be bounded too: topics and properties may
# have 64 KiB, and any device may send new ones. Longer ones are not cached, which costs 10 µs for each message.
REMEMBERED_BYTES: Final = 512
# Why a message is filtered.
STATUS = "status"  # a gateway's own status message
NO_ROUTE = "no_route"
OTHER_GROUP = (
    "other_group"  # filters of two session groups overlap: sessions of the other group receive the message too
)


class Extras(dict[bytes, "list[Header]"]):
    """Headers by raw property bytes, for one route."""

    __slots__ = ("route",)

    def __init__(self, route: Route) -> None:
        super().__init__()
        self.route = route


Entry = tuple["Slot | None", bytes | None, "list[Header]", bool, Extras | None]
"""Slot, key, headers, whether the message's topic is the first header's value, extras. Topics share headers, and an
entry with THE_TOPIC as its key: the hot path puts the message's topic into both."""
SLOW: Final[Entry] = (None, None, [], False, None)
THE_TOPIC: Final = bytes(bytearray(b"the topic"))  # an object of its own
_WRONG: Final = (TypeError, ValueError, OverflowError)  # raised for a record that no batch can take


class _Known:
    """What depends on the topic alone, for a route with interceptors."""

    __slots__ = ("chain", "headers", "plan", "route", "slots", "topic")

    def __init__(self, topic: str, route: Route, chain: Chain, plan: TopicPlan) -> None:
        self.topic = topic
        self.route = route
        self.chain = chain
        self.plan = plan
        self.headers: dict[int, list[Header]] = {}  # by flag nibble: a topic has one or two
        self.slots: list[Slot | None] = [None, None, None]  # by QoS, for records that keep topic and key


class TopicNameError(BridgeError):
    """An MQTT topic name that the specification forbids [MQTT-3.3.2-1, -2]."""


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """How large a payload may be, and how many topics and property strings are remembered."""

    max_record_bytes: int
    cache_entries: int
    property_entries: int

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        flow = settings.flow
        return cls(settings.kafka.max_record_bytes, flow.route_cache_entries, flow.property_cache_entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchHooks:
    """Callbacks of a dispatcher.

    ``filtered`` receives route and reason of each dropped message. ``failed`` is called when the worker cannot
    continue."""

    topics: TopicLocator
    parse_properties: Callable[[bytes], Properties]
    filtered: Callable[[str, str], None]
    failed: Callable[[BaseException], None]


class Dispatcher:
    """One per session group, shared by its sessions. Belongs to the event loop's thread.

    ``group`` None is for sessions of earlier settings: they take messages of every route. A session sets
    ``delivery_prefix`` before it feeds packets; the ingest sets ``received_ms``.
    """

    def __init__(
        self,
        router: Router,
        accumulator: Accumulator,
        dead_letters: DeadLetters,
        limits: DispatchLimits,
        hooks: DispatchHooks,
        *,
        group: str | None = "",  # None: messages of every route
        chains: Chains = NO_CHAINS,
    ) -> None:
        self.caches: list[dict[bytes, Entry]] = [{} for _ in range(16)]
        self.received_ms = 0  # of the read; the ingest sets it
        self.delivery_prefix = b""  # of the delivery ids; the session sets it
        # Whether a group certainly receives the messages of a topic; other groups then drop their copies.
        self.receives: Callable[[str, str], bool] = lambda _group, _topic: True
        self.clamped = 0  # records whose interceptor set a timestamp too far ahead
        self._older: list[dict[bytes, Entry]] = [{} for _ in range(16)]
        self._young = self._old = 0  # entries of caches and of _older, together at most _most
        self._limit(limits)
        self._router = router
        self._group = group
        self._accumulator = accumulator
        self._topics = hooks.topics
        self._dead_letters = dead_letters
        self._parse_properties = hooks.parse_properties
        self._filtered = hooks.filtered
        self._failed = hooks.failed
        self._chains = chains
        self._known: dict[bytes, _Known] = {}  # by topic, of routes with interceptors
        self._properties: dict[bytes, Properties] = {}  # by their bytes, for routes with interceptors
        self._extras: dict[Route, Extras] = {}  # headers by property bytes
        self._shared: dict[tuple[Slot, int], Entry] = {}  # by slot and flag nibble
        self._parking = Parking(
            accumulator, hooks.topics, dead_letters, choose=self._slot, settled=self.settle_afresh, failed=hooks.failed
        )
        self._delivery = 0  # number of the last delivery id
        self.holding = Holding(accumulator, again=self._again, gone=self.settle_afresh, failed=hooks.failed)

    # --- the hot path's misses ---------------------------------------------------------------------

    def entry(self, flags: int, topic_bytes: bytes) -> Entry:
        """The entry of a topic, put into the table for ``flags``, PUBLISH's low nibble. Raises TopicNameError."""
        # After _grow_old the hot path looks into an older generation until the end of its read.
        found = self.caches[flags].get(topic_bytes)
        if found is not None:
            return found
        found = self._older[flags].pop(topic_bytes, None)
        if found is not None:
            self._old -= 1
        else:
            found = self._make_entry(flags, topic_bytes)
            if len(topic_bytes) > REMEMBERED_BYTES:
                return found
        if self._young >= self._half and self._young + self._old >= self._most:
            self._grow_old()
        self._young += 1
        self.caches[flags][topic_bytes] = found
        return found

    def _grow_old(self) -> None:
        """Begin a new generation. Entries in use move over from the older one, the others are dropped with it.

        As many topics as the cache has entries never get here, so each stays. Of more than half of them the first are
        kept: topics in use have moved over before new ones came."""
        for nibble, cache in enumerate(self.caches):
            kept = len(cache) * self._half // self._young
            self._older[nibble] = cache if kept >= len(cache) else dict(islice(cache.items(), kept))
            self.caches[nibble] = {}
        self._young, self._old = 0, sum(map(len, self._older))

    def property_headers(self, extras: Extras, raw: bytes) -> list[Header]:
        """The headers of property bytes seen for the first time. Raises what ``parse_properties`` does."""
        headers = extras.route.for_properties(self._parse_properties(raw)) if raw else []
        if len(raw) <= REMEMBERED_BYTES:
            if len(extras) >= self._property_entries:
                extras.clear()
            extras[raw] = headers
        return headers

    def note_copy(self) -> None:
        """Count a repeated delivery of a QoS 2 message that was dropped."""
        self._accumulator.current.copies += 1

    def adopt(self, router: Router, chains: Chains, limits: DispatchLimits) -> None:
        """Use other routes from the next message on. Earlier messages stay as they were routed."""
        self._router = router
        self._chains = chains
        self._limit(limits)
        self._extras.clear()
        self._properties.clear()
        self.settle_afresh()

    def _limit(self, limits: DispatchLimits) -> None:
        self._most = limits.cache_entries
        self._half = max(1, self._most // 2)
        self._property_entries = limits.property_entries
        self._max_record_bytes = limits.max_record_bytes

    def _make_entry(self, flags: int, topic_bytes: bytes) -> Entry:
        """The table's entry for a topic and flags. SLOW: each of its messages has to be routed on its own."""
        topic = _topic_name(topic_bytes)
        route = self._router.match(topic)
        if route is None or not route.fast or route.tombstones or self._is_others(route, topic):
            return SLOW
        if self._chains.get(route.name) is not None:
            return SLOW
        if route.name in self.holding:
            return SLOW
        try:
            plan = route.for_topic(topic)
        except RouteError:
            return SLOW  # each message becomes a dead letter
        assert plan.kafka_topic is not None
        partitions = self._topics.partition_count(plan.kafka_topic)
        if partitions is None or self._parking.holds(plan.kafka_topic):
            return SLOW
        extras = self._extras_of(route) if route.uses_properties else None
        slot = self._slot(route, flags >> 1 & 3, plan.kafka_topic, plan.key, partitions)
        headers = plan.headers(flags)
        named = headers[:1] == [(wire.MQTT_TOPIC, topic_bytes)]
        shared = self._shared.setdefault((slot, flags), (slot, THE_TOPIC, headers, named, extras))
        if headers[named:] == shared[2][named:]:
            return shared if plan.key == topic_bytes else (slot, plan.key, shared[2], named, extras)
        # Key, header and look-up share the topic's bytes: copies would be a third of the memory of an entry.
        key = topic_bytes if plan.key == topic_bytes else plan.key
        headers = [(name, topic_bytes if value == topic_bytes else value) for name, value in headers]
        return slot, key, headers[:], False, extras  # a copy has no room to grow: 16 bytes less

    def _extras_of(self, route: Route) -> Extras:
        extras = self._extras.get(route)
        if extras is None:
            extras = self._extras[route] = Extras(route)
        return extras

    def _slot(self, route: Route, qos: int, kafka_topic: str, key: bytes | None, partitions: int) -> Slot:
        if key is None:
            return self._accumulator.keyless_slot(route.name, qos, kafka_topic, partitions)
        return self._accumulator.slot(route.name, qos, kafka_topic, partition_for(key, partitions))

    def _is_others(self, route: Route, topic: str) -> bool:
        """Whether the message is also for sessions of another group, which take it.

        If no filter of this group matches the message, the broker queued it under earlier settings and delivers it to
        this session only."""
        group = self._group
        return group is not None and route.group != group and self._router.fetches(group, topic)

    # --- the slow lane -----------------------------------------------------------------------------

    def slow(self, flags: int, topic_bytes: bytes, raw_properties: bytes, payload: bytes) -> None:
        """Route one message (``flags``: PUBLISH's low nibble): to a slot, the dead letters or parking, or drop it.
        Raises TopicNameError."""
        known = self._known.get(topic_bytes)
        if known is not None:
            if not (self.holding and self._held(known.route, flags, topic_bytes, raw_properties, payload)):
                self._intercept(known, flags, raw_properties, payload)
            return
        topic = _topic_name(topic_bytes)
        route = self._router.match(topic)
        if route is None:
            self._accumulator.current.filtered += 1
            self._filtered("", STATUS if topic.startswith("gateways/") else NO_ROUTE)
            return
        is_others = self._is_others(route, topic)
        if is_others and self.receives(route.group, topic):
            self._accumulator.current.filtered += 1
            self._filtered(route.name, OTHER_GROUP)
            return
        if self.holding and self._held(route, flags, topic_bytes, raw_properties, payload):
            return
        chain = self._chains.get(route.name)
        view = self._view(topic, flags, raw_properties, payload)
        plan: TopicPlan | None = None
        try:
            plan = route.for_topic(topic)
            if chain is not None:
                known = _Known(topic, route, chain, plan)
                if not is_others:  # else each message asks again who takes it
                    self._remember(topic_bytes, known)
                self._intercept(known, flags, raw_properties, payload)
                return
            resolved = route.for_message(plan, view)
        except RouteError as error:
            self._bury(route, view, plan.key if plan else None, error.reason, error, plan.kafka_topic if plan else None)
            return
        if len(payload) > self._max_record_bytes:
            self._bury_large(route, view, len(payload), resolved.key, resolved.kafka_topic)
            return
        value = None if route.tombstones and not payload else payload
        self._place(
            route, flags >> 1 & 3, self.received_ms, resolved.kafka_topic, resolved.key, value, resolved.headers
        )

    def _view(self, topic: str, flags: int, raw_properties: bytes, payload: bytes) -> MessageView:
        """A view of the message with a new delivery id."""
        properties = self._parse_properties(raw_properties) if raw_properties else NO_PROPERTIES
        self._delivery += 1
        delivery_id = b"%s%d" % (self.delivery_prefix, self._delivery)
        return MessageView(topic, flags, properties, payload, self.received_ms, delivery_id)

    def _place(
        self,
        route: Route,
        qos: int,
        timestamp_ms: int,
        kafka_topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        *,
        last: bool = True,
    ) -> None:
        """Append a record to its slot, or park it. Its message is counted with its ``last`` record."""
        partitions = self._topics.partition_count(kafka_topic)
        if partitions is None or self._parking.holds(kafka_topic):
            self._parking.park(kafka_topic, route, qos, timestamp_ms, key, value, headers, last=last)
            return
        slot = self._slot(route, qos, kafka_topic, key, partitions)
        self._accumulator.append(slot, timestamp=timestamp_ms, key=key, value=value, headers=headers)
        if not last:
            mark_unfinished(slot)

    # --- interceptors ------------------------------------------------------------------------------

    def _remember(self, topic_bytes: bytes, known: _Known) -> None:
        """Keep what is known of a topic, unless its name is long. Clears a full cache first."""
        if len(topic_bytes) <= REMEMBERED_BYTES:
            if len(self._known) >= self._half:
                self._known.clear()
            self._known[topic_bytes] = known

    def _intercept(self, known: _Known, flags: int, raw: bytes, payload: bytes) -> None:
        """Build the record, run the chain, and place the resulting records."""
        route, plan = known.route, known.plan
        properties = NO_PROPERTIES
        if raw:
            found = self._properties.get(raw)
            if found is None:
                found = self._parse_properties(raw)
                if len(raw) <= REMEMBERED_BYTES:
                    if len(self._properties) >= self._property_entries:
                        self._properties.clear()
                    self._properties[raw] = found
            properties = found
        received_ms = self.received_ms
        kafka_topic, key = plan.kafka_topic, plan.key
        headers: list[Header]
        if route.fast:
            view = MessageView(known.topic, flags, properties, payload, received_ms)
            assert kafka_topic is not None
            settled = known.headers.get(flags)
            if settled is None:
                settled = known.headers[flags] = plan.headers(flags)
            headers = settled[:]  # a copy: interceptors may change it
            if raw and route.uses_properties:
                headers += self._extra_headers(route, raw)
        else:
            self._delivery += 1
            delivery_id = b"%s%d" % (self.delivery_prefix, self._delivery)
            view = MessageView(known.topic, flags, properties, payload, received_ms, delivery_id)
            try:
                resolved = route.for_message(plan, view)
            except RouteError as error:
                self._bury(route, view, plan.key, error.reason, error, plan.kafka_topic)
                return
            kafka_topic, key, headers = resolved.kafka_topic, resolved.key, resolved.headers
        value = None if route.tombstones and not payload else payload
        outcome = known.chain.run(Record(view, kafka_topic, key, value, headers, received_ms))
        if type(outcome) is not Record:
            self._settle_outcome(known, view, outcome, kafka_topic, key)
        elif outcome.topic is not kafka_topic or outcome.key is not key:
            self._settle_outcome(known, view, [outcome], kafka_topic, key)
        else:
            value = outcome.value
            qos = flags >> 1 & 3
            plain = type(value) is bytes and type(outcome.timestamp_ms) is int  # the compiled builder takes no other
            slot = known.slots[qos] if route.fast and plain else None
            size = 0
            try:
                ahead = outcome.timestamp_ms > received_ms + AHEAD_MS
                if value is not None:
                    size = len(value)
                if ahead or size > self._max_record_bytes:
                    pass
                elif slot is None:
                    check_parts(outcome)
                elif slot.append(slot.count, outcome.timestamp_ms, key, value, outcome.headers) is None:
                    slot.roll(outcome.timestamp_ms, key, value, outcome.headers)
                else:
                    slot.count += 1
            except _WRONG as error:  # a builder that raises has appended nothing
                self._settle_outcome(known, view, known.chain.spoilt(error), kafka_topic, key)
                return
            if ahead:
                self._settle_outcome(known, view, [outcome], kafka_topic, key)
            elif size > self._max_record_bytes:
                self._bury_large(route, view, size, key, kafka_topic)
            elif slot is None:
                self._place(route, qos, outcome.timestamp_ms, kafka_topic, key, outcome.value, outcome.headers)
                if route.fast and not self._parking.holds(kafka_topic):
                    known.slots[qos] = self._slot(route, qos, kafka_topic, key, self._partitions(kafka_topic))

    def _settle_outcome(
        self, known: _Known, view: MessageView, outcome: Outcome, kafka_topic: str, key: bytes | None
    ) -> None:
        """Place the outcome of a chain, unless it is one record with unchanged topic and key."""
        route = known.route
        match outcome:
            case Drop():
                self._accumulator.current.filtered += 1
                known.chain.filtered[view.qos] += 1
                self._filtered(route.name, outcome.reason)
            case Fault(error, stop) if stop:
                # The message is neither written nor acknowledged: the broker delivers it again.
                self._accumulator.hold_span()
                self._accumulator.parked_messages += 1
                self._failed(error)
            case Fault(error):
                self._bury(route, view, key, DeadLetterReason.INTERCEPTOR_ERROR, error, kafka_topic)
            case list():
                self._place_all(known, view, outcome, kafka_topic, key)
            case Record():
                self._place_all(known, view, [outcome], kafka_topic, key)

    def _place_all(
        self, known: _Known, view: MessageView, records: list[Record], kafka_topic: str, key: bytes | None
    ) -> None:
        """Place all records of one message; if one cannot be placed, make a dead letter of the message instead."""
        route = known.route
        for record in records:
            try:
                check_parts(record)
            except _WRONG as error:
                self._settle_outcome(known, view, known.chain.spoilt(error), kafka_topic, key)
                return
            if record.topic != kafka_topic:
                try:
                    route.check_topic(record.topic)
                except RouteError as error:
                    self._bury(route, view, key, error.reason, error, record.topic)
                    return
            if record.value is not None and len(record.value) > self._max_record_bytes:
                self._bury_large(route, view, len(record.value), key, record.topic)
                return
        for number, record in enumerate(records, 1):
            timestamp_ms, headers = record.timestamp_ms, record.headers
            if timestamp_ms > view.received_ms + AHEAD_MS:  # the device's clock is wrong, and Kafka would refuse it
                timestamp_ms, headers = view.received_ms, noting(headers, timestamp_ms)
                self.clamped += 1
            self._place(
                route, view.qos, timestamp_ms, record.topic, record.key, record.value, headers,
                last=number == len(records),
            )  # fmt: skip

    def _extra_headers(self, route: Route, raw: bytes) -> list[Header]:
        """The headers of property bytes: from the cache, or made and cached."""
        extras = self._extras_of(route)
        try:
            return extras[raw]
        except KeyError:
            return self.property_headers(extras, raw)

    def _partitions(self, kafka_topic: str) -> int:
        count = self._topics.partition_count(kafka_topic)
        assert count is not None  # checked in this same step
        return count

    # --- dead letters ------------------------------------------------------------------------------

    def _bury_large(self, route: Route, view: MessageView, size: int, key: bytes | None, kafka_topic: str) -> None:
        """Make a dead letter of a message with a value of ``size`` bytes, more than a record may have."""
        error = BridgeError(
            f"The payload has {size} bytes; kafka.max_record_bytes allows {self._max_record_bytes}. "
            "Raise it together with the topic's max.message.bytes, or send less at once."
        )
        self._bury(route, view, key, DeadLetterReason.TOO_LARGE, error, kafka_topic)

    def _bury(
        self,
        route: Route,
        view: MessageView,
        key: bytes | None,
        reason: DeadLetterReason,
        error: Exception,
        kafka_topic: str | None,
    ) -> None:
        """Make a dead letter of a message. ``key`` None: the MQTT topic. ``kafka_topic`` None: unknown."""
        headers: list[Header] = [(wire.MQTT_TOPIC, view.topic.encode()), (wire.MQTT_QOS, b"%d" % view.qos)]
        if view.flags & 1:
            headers.append((wire.MQTT_RETAIN, b"1"))
        headers += property_headers(view.properties)
        device = route.device_of(view)
        if device is not None:
            headers.append((wire.GATEWAY_DEVICE, device))
        letter = DeadLetterDraft(
            route.name, view.qos, key or view.topic.encode(), view.payload, headers, reason, error,
            first_seen_ms=self.received_ms, kafka_topic=kafka_topic,
        )  # fmt: skip
        self._dead_letters.bury(letter)

    # --- stopped routes ----------------------------------------------------------------------------

    def stop(self, route: str) -> None:
        """Hold a route's messages from now on. None is acknowledged and none goes to Kafka."""
        self.holding.stop(route)
        self.settle_afresh()

    def admit(self, route: str, count: int) -> None:
        """Release ``count`` messages of a stopped route as a trial, the oldest first."""
        self.holding.admit(route, count)

    def tried(self, route: str) -> bool:
        """Whether every admitted message of a stopped route is durable or a dead letter."""
        return not self._parking.holds_of(route) and self.holding.tried(route)

    def returned(self, delivery_prefix: bytes) -> None:
        """Note that a connection ended: the broker delivers its unacknowledged messages again."""
        if self.holding:
            self.holding.give_back(delivery_prefix)

    def release(self, route: str) -> None:
        """Release a stopped route: first its held messages, in order."""
        self.holding.release(route)

    def sort_held(self) -> None:
        """Move held messages to their present routes."""
        self.holding.sort_anew(lambda message: getattr(self._router.match(message.topic.decode()), "name", None))

    def _held(self, route: Route, flags: int, topic: bytes, properties: bytes, payload: bytes) -> bool:
        """Hold a message of a stopped route; False when it passes. Raises for malformed properties."""
        if properties:
            self._parse_properties(properties)
        received_ms, prefix = self.received_ms, self.delivery_prefix
        return self.holding.keeps(
            route.name, lambda span: HeldMessage(flags, topic, properties, payload, received_ms, prefix, span)
        )

    def _again(self, message: HeldMessage) -> None:
        """Route a held message. It keeps its receive time."""
        before = self.received_ms, self.delivery_prefix
        self.received_ms, self.delivery_prefix = message.received_ms, message.delivery_prefix
        try:
            self.slow(message.flags, message.topic, message.properties, message.payload)
        finally:
            self.received_ms, self.delivery_prefix = before

    def settle_afresh(self) -> None:
        """Clear the caches, since topics or routes have changed. The dictionaries stay the same objects, because the
        hot path refers to one of them."""
        self._known.clear()
        self._shared.clear()
        for cache in (*self.caches, *self._older):
            cache.clear()
        self._young = self._old = 0

    async def close(self) -> None:
        """Stop waiting for topics. Parked records stay unacknowledged."""
        await self._parking.close()


def _topic_name(topic: bytes) -> str:
    """An MQTT topic as text. Raises TopicNameError for one that MQTT forbids."""
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        raise TopicNameError(f"The broker sent a topic name that is no UTF-8: {topic[:80]!r}.") from None
    if not name or "\0" in name or "+" in name or "#" in name:
        raise TopicNameError(f"The broker sent a topic name that MQTT forbids: {name[:80]!r}.")
    return name
