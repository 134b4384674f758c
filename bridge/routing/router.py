"""From an MQTT message to a Kafka topic, key and headers: routes in order, the first whose filter matches wins.

Each part of the result is made as seldom as its inputs change:

    once per topic         router.match(topic) → route.for_topic(topic): Kafka topic, key, the topic's headers
    once per flag nibble   plan.headers(flags): those and the headers of QoS, retain and DUP
    once per properties    route.for_properties(properties): the headers of MQTT 5 properties, which follow the others
    once per message       route.for_message(plan, view): all of it, needed only when route.fast is false

What a missing value (absent or empty) means depends on its place:

- Kafka topic: the message becomes a dead letter.
- Key: the record has no key, so it goes to any partition, in no order. On a route that writes tombstones the message
  becomes a dead letter, because a compacted topic refuses records without a key.
- Header, device, message id: that header is not written.

No I/O, no clock. The event loop's thread owns everything here. The only state is the set of Kafka topics that a route's
template has made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from bridge import wire
from bridge.message import MessageView, Properties
from bridge.routing.filter_trie import FilterTrie
from bridge.routing.filters import Cover, Subscription, matches, minimal_cover, split_disjoint, validate_filter
from bridge.routing.headers import flag_headers, message_id_headers, property_headers
from bridge.routing.template import MissingValue, Need, Template
from bridge.routing.topic_rule import RouteError, TopicRule
from bridge.wire import DeadLetterReason, Header, MessageIdKind
from config.errors import ConfigError
from config.values.topic_filters import covers

if TYPE_CHECKING:
    from config.settings import RouteSettings

RESERVED_FILTER: Final = "gateways/#"
"""The gateways' own birth and death messages. No route takes them, not even one with the filter '#'."""

NOTHING: Final = Cover((), ())

_TOPIC_ONLY: Final[frozenset[Need]] = frozenset({"topic"})
_FLAGS_ONLY: Final[frozenset[Need]] = frozenset({"flags"})
_PROPERTIES_ONLY: Final[frozenset[Need]] = frozenset({"properties"})


@dataclass(frozen=True, slots=True)
class Resolved:
    """Where one message goes. ``key`` None: any partition. ``headers`` is the caller's own list."""

    kafka_topic: str
    key: bytes | None
    headers: list[Header]
    device: bytes | None
    message_id: bytes | None
    message_id_kind: MessageIdKind | None


class TopicPlan:
    """What the MQTT topic alone decides. Made once per topic by ``Route.for_topic``, then only read.

    ``kafka_topic`` is None if the message decides it. ``key`` None: no key on a fast route; on others the message may
    give one. ``base`` are the headers that the topic decides; ``device`` and ``message_id`` are set if the topic gives
    them.
    """

    __slots__ = ("base", "device", "kafka_topic", "key", "message_id", "route", "topic")

    def __init__(self, route: Route, topic: str) -> None:
        self.route = route
        self.topic = topic
        self.kafka_topic: str | None = None  # None: the message decides it
        self.key: bytes | None = None  # None: no key, or the message decides it
        self.device: bytes | None = None  # None: the message decides it, or nothing
        self.message_id: bytes | None = None  # None: as device
        self.base: list[Header] = []  # headers that the topic decides

    def headers(self, flags: int) -> list[Header]:
        """The headers for a message with this PUBLISH flag nibble, without those of its properties: a new list."""
        return [*self.base, *self.route.flag_headers[flags]]

    def __repr__(self) -> str:
        return f"<TopicPlan {self.topic!r} by {self.route.name!r} to {self.kafka_topic!r}>"


class Route:
    """One route, compiled. Made by ``Router``.

    - ``kafka_topic``: the topic in the settings, None if a template makes it;
    - ``needs``: everything that its templates read;
    - ``fast``: whether each part needs only the topic, the flag nibble or the properties, so ``for_message`` is unused;
    - ``uses_properties``: whether anything reads the properties, so their bytes must be parsed;
    - ``keyed``: whether it has a key template; a record without a key then had no value for it;
    - ``tombstones``: whether an empty payload becomes a null value;
    - ``flag_headers``: the headers of each of the 16 flag nibbles.
    """

    def __init__(self, settings: RouteSettings, *, index: int, instance: str, reserved_topics: frozenset[str]) -> None:
        """Raises ConfigError with the setting's name for templates, topics and headers that are wrong."""
        self.name = settings.name
        self.index = index
        self.filters = settings.filters
        self.qos = settings.qos
        self.group = settings.group
        self.tombstones = settings.empty_payload == "tombstone"  # an empty payload becomes a record without value
        where = f"route {settings.name!r}"
        self._instance = instance
        self._device: Template | None = None
        if settings.device:
            if "device" in Template.parse(settings.device, where=f"{where}, device").needs:
                raise ConfigError(f"{where}, device: {settings.device!r} uses ${{device}}, which is itself")
            self._device = self._template(settings.device, "device")
        self._topic = self._template(settings.topic, "topic")
        self._key = self._template(settings.key, "key") if settings.key else None
        self.keyed = self._key is not None
        self._message_id = self._template(settings.message_id, "message_id") if settings.message_id else None
        self._topics = TopicRule(settings, reserved_topics)
        constant = self._topic.constant
        self.kafka_topic = None if constant is None else self._topics.check_static(constant.decode())
        self.metadata_headers = frozenset(settings.metadata_headers)
        self._sort_headers(settings.headers)

    def _template(self, text: str, setting: str) -> Template:
        where = f"route {self.name!r}, {setting}"
        template = Template.parse(text, where=where).bind(instance=self._instance, device=self._device, where=where)
        _check_levels(template, self.filters, where)
        return template

    def _sort_headers(self, headers: Mapping[str, str]) -> None:
        """Sort the headers by what they need: topic, flags, properties or the whole message."""
        selected = self.metadata_headers
        extra: list[tuple[str, Template]] = []
        for name, text in headers.items():
            if not name or name.startswith(wire.RESERVED_PREFIXES):
                why = "the gateway's own" if name else "empty"
                raise ConfigError(
                    f"route {self.name!r}, headers: the name {name!r} is {why}; "
                    f"choose one that does not begin with {', '.join(wire.RESERVED_PREFIXES)}"
                )
            extra.append((name, self._template(text, f"headers.{name}")))
        if self._device is not None and "device" in selected:
            extra.append((wire.GATEWAY_DEVICE, self._device))
        self._static: list[Header] = [(wire.GATEWAY_ID, self._instance.encode())] if "gateway" in selected else []
        self._copies_topic = "topic" in selected
        self._copies_properties = "properties" in selected
        self._stamps_received = "received" in selected
        self._stamps_delivery = "message_id" in selected and self._message_id is None
        by_flags: list[tuple[str, Template]] = []
        self._by_topic: list[tuple[str, Template]] = []
        self._by_properties: list[tuple[str, Template]] = []
        self._by_message: list[tuple[str, Template]] = []
        for name, template in extra:
            if template.needs <= _TOPIC_ONLY:
                self._by_topic.append((name, template))
            elif template.needs == _FLAGS_ONLY:
                by_flags.append((name, template))
            elif template.needs == _PROPERTIES_ONLY:
                self._by_properties.append((name, template))
            else:
                self._by_message.append((name, template))
        self.flag_headers = flag_headers(selected, tuple(by_flags))
        core = [t for t in (self._topic, self._key, self._message_id) if t is not None]
        self.needs: frozenset[Need] = frozenset().union(*(t.needs for t in core), *(t.needs for _, t in extra))
        self.uses_properties = self._copies_properties or "properties" in self.needs
        self.fast = not (self._by_message or self._stamps_received or self._stamps_delivery) and all(
            t.needs <= _TOPIC_ONLY for t in core
        )
        self._topic_by_topic = self._topic.needs <= _TOPIC_ONLY
        self._key_by_topic = self._key is None or self._key.needs <= _TOPIC_ONLY
        self._id_by_topic = self._message_id is not None and self._message_id.needs <= _TOPIC_ONLY
        self._device_by_topic = self._device is not None and self._device.needs <= _TOPIC_ONLY

    @property
    def topic_template(self) -> Template:
        return self._topic

    @property
    def key_template(self) -> Template | None:
        """The bound template of the key; None if the route gives none."""
        return self._key

    def templates(self) -> Iterator[tuple[str, Template]]:
        """Every bound template with the name of its setting."""
        named = {"topic": self._topic, "key": self._key, "device": self._device, "message_id": self._message_id}
        yield from ((name, template) for name, template in named.items() if template is not None)
        yield from ((f"headers.{name}", template) for name, template in self._by_topic if name != wire.GATEWAY_DEVICE)

    def device_levels(self) -> tuple[int, ...] | None:
        """The levels of the MQTT topic that name the device; None if the topic alone does not name it."""
        if self._device is None or self._device.needs - _TOPIC_ONLY:
            return None
        return self._device.levels

    @property
    def destination(self) -> tuple[object, ...]:
        """Session group, topic template and key template. A message that moves between two routes with the same
        destination keeps its order."""
        return self.group, self._topic.parts, None if self._key is None else self._key.parts

    def for_topic(self, topic: str) -> TopicPlan:
        """Everything that the topic alone decides. Raises RouteError for a dead letter."""
        plan = TopicPlan(self, topic)
        plan.kafka_topic = self.kafka_topic
        if self.kafka_topic is None and self._topic_by_topic:
            try:
                plan.kafka_topic = self._topics.check(self._topic.render_topic(topic))
            except MissingValue as missing:
                raise self._missing("topic", missing) from None
        if self._key is not None and self._key_by_topic:
            try:
                plan.key = self._key.render_topic(topic)
            except MissingValue as missing:
                self._require_key(missing)
        base = plan.base
        if self._copies_topic:
            base.append((wire.MQTT_TOPIC, topic.encode()))
        base += self._static
        for name, template in self._by_topic:
            value = _render_topic(template, topic)
            if value is not None:
                base.append((name, value))
        if self._device_by_topic and self._device is not None:
            plan.device = _render_topic(self._device, topic)
        if self._id_by_topic and self._message_id is not None:
            plan.message_id = _render_topic(self._message_id, topic)
            if plan.message_id is not None:
                base += message_id_headers(plan.message_id, MessageIdKind.DEVICE)
        return plan

    def for_properties(self, properties: Properties) -> list[Header]:
        """The headers that properties alone decide: a new list, which follows ``plan.headers(flags)``."""
        headers = property_headers(properties) if self._copies_properties else []
        if self._by_properties:
            view = MessageView("", properties=properties)
            for name, template in self._by_properties:
                value = _render(template, view)
                if value is not None:
                    headers.append((name, value))
        return headers

    def for_message(self, plan: TopicPlan, view: MessageView) -> Resolved:
        """Everything about one message, on any route. Raises RouteError for a dead letter."""
        kafka_topic = plan.kafka_topic
        if kafka_topic is None:
            try:
                kafka_topic = self._topics.check(self._topic.render(view))
            except MissingValue as missing:
                raise self._missing("topic", missing) from None
        key = plan.key
        if self._key is not None and not self._key_by_topic:
            try:
                key = self._key.render(view)
            except MissingValue as missing:
                self._require_key(missing)
        headers = plan.headers(view.flags)
        headers += self.for_properties(view.properties)
        for name, template in self._by_message:
            value = _render(template, view)
            if value is not None:
                headers.append((name, value))
        if self._stamps_received:
            headers.append((wire.GATEWAY_RECEIVED_MS, b"%d" % view.received_ms))
        device = plan.device
        if self._device is not None and not self._device_by_topic:
            device = _render(self._device, view)
        message_id, kind = plan.message_id, MessageIdKind.DEVICE
        if self._stamps_delivery:
            message_id, kind = view.delivery_id, MessageIdKind.DELIVERY
            headers += message_id_headers(message_id, kind)
        elif self._message_id is not None and not self._id_by_topic:
            message_id = _render(self._message_id, view)
            if message_id is not None:
                headers += message_id_headers(message_id, kind)
        return Resolved(kafka_topic, key, headers, device, message_id, None if message_id is None else kind)

    def check_topic(self, topic: str) -> str:
        """A Kafka topic that an interceptor chose. Raises RouteError unless it is allowed and within the limit."""
        return self._topics.check(topic.encode(), "an interceptor")

    def device_of(self, view: MessageView) -> bytes | None:
        """The device of a message, by the route's template; None if the message has no value for it."""
        return None if self._device is None else _render(self._device, view)

    def _require_key(self, missing: MissingValue) -> None:
        if self.tombstones:
            raise self._missing("key", missing) from None

    def _missing(self, setting: str, missing: MissingValue) -> RouteError:
        return RouteError(
            f"route {self.name!r}, {setting}: {missing}", reason=DeadLetterReason.MISSING_VALUE, route=self.name
        )

    def __repr__(self) -> str:
        return f"<Route {self.name!r} {list(self.filters)} to {self._topic.text!r}, {'fast' if self.fast else 'slow'}>"


class Router:
    """All routes, in order.

    - ``match(topic)``: the first route with a filter that matches the MQTT topic, or None (no route, or reserved);
    - ``covers``: for each session group the subscriptions that fetch the messages of its routes, and their overlaps;
    - ``warnings``: sentences for the operator about filters without effect, and about topics delivered twice.
    """

    def __init__(
        self, routes: Sequence[RouteSettings], *, instance: str, reserved_topics: Collection[str] = ()
    ) -> None:
        """Compile ``routes``; raises ConfigError for one that is wrong or can never match.

        No route may write to the Kafka topics ``reserved_topics`` (dead letters)."""
        if not routes:
            raise ConfigError(
                "no routes are set: without [[routes]] the gateway would subscribe to nothing; name filters and a topic"
            )
        reserved = frozenset(reserved_topics)
        self.routes = tuple(
            Route(settings, index=index, instance=instance, reserved_topics=reserved)
            for index, settings in enumerate(routes)
        )
        self._trie: FilterTrie[Route | None] = FilterTrie()
        self._trie.add(RESERVED_FILTER, None)
        reachable, unreachable = _reachable(self.routes)
        for text, route in reachable:
            self._trie.add(text, route)
        self.match: Callable[[str], Route | None] = self._trie.first  # None: no route takes the topic
        # In the order of the routes. A group has no subscription if other groups' routes take all of its topics.
        self.covers: dict[str, Cover] = {
            group: minimal_cover((text, route.qos) for text, route in reachable if route.group == group)
            for group in dict.fromkeys(route.group for route in self.routes)
        }
        overlaps = (warning for cover in self.covers.values() for warning in _overlap_warnings(cover))
        self.warnings = (*unreachable, *overlaps)

    @property
    def kafka_topics(self) -> frozenset[str]:
        """The topics that settings name. They must exist before the start."""
        return frozenset(route.kafka_topic for route in self.routes if route.kafka_topic is not None)

    def before(self, older: Sequence[Router]) -> None:
        """Ask older routers, the latest first, about messages that no route takes: the broker had queued them for
        filters that the settings no longer have. Reserved topics stay reserved there."""
        finders = [router._trie.first for router in (self, *older)]  # noqa: SLF001 - routers of earlier settings

        def match(topic: str) -> Route | None:
            for first in finders:
                route = first(topic)
                if route is not None:
                    return route
            return None

        self.match = match if older else self._trie.first

    def uncovered(self, filters: Iterable[str]) -> list[str]:
        """The filters with topics that perhaps no route takes."""
        return [text for text in filters if not self._trie.covering(text)]

    def fetches(self, group: str, topic: str) -> bool:
        """Whether a session of the group is subscribed to the MQTT topic."""
        cover = self.covers.get(group)
        return cover is not None and any(matches(subscription.filter, topic) for subscription in cover.subscriptions)

    def subscriptions(
        self,
        distribution: Literal["shared", "partitioned"],
        sessions: int,
        *,
        share_group: str = "gateway",
        group: str = "",
        present: Sequence[Collection[str]] = (),
    ) -> tuple[tuple[Subscription, ...], ...]:
        """The subscriptions of each session of a group, by the session's number.

        ``shared``: each session gets the same minimal cover, as ``$share/GROUP/FILTER``. ``partitioned``: plain
        filters, each topic in one session. A filter stays in the session that has it in ``present``; some sessions get
        none if there are fewer separate filters than sessions. Raises ConfigError for a filter that is too long with
        its share group.
        """
        if distribution == "partitioned":
            return split_disjoint(self.covers.get(group, NOTHING), sessions, present)
        cover = self.covers.get(group, NOTHING)
        shared = tuple(Subscription(f"$share/{share_group}/{text}", qos) for text, qos in cover.subscriptions)
        for subscription in shared:
            validate_filter(subscription.filter)
        return (shared,) * sessions


def _render(template: Template, view: MessageView) -> bytes | None:
    try:
        return template.render(view)
    except MissingValue:
        return None


def _render_topic(template: Template, topic: str) -> bytes | None:
    try:
        return template.render_topic(topic)
    except MissingValue:
        return None


def _check_levels(template: Template, filters: Sequence[str], where: str) -> None:
    """Refuse ``${topic[n]}`` if a filter of fixed depth has no such level. It would never have a value."""
    for level in template.levels:
        for text in filters:
            depth = text.count("/") + 1
            if not text.endswith("#") and not -depth <= level < depth:
                raise ConfigError(
                    f"{where}: {template.text!r} uses ${{topic[{level}]}}, but topics of the filter {text!r} have "
                    f"{depth} levels; the first is ${{topic[0]}}, the last ${{topic[-1]}}"
                )


def _reachable(routes: Sequence[Route]) -> tuple[list[tuple[str, Route]], list[str]]:
    """The filters that can match, with their routes, and a warning for each route with filters that cannot.

    Raises ConfigError for a route that can never match.
    """
    before = [(RESERVED_FILTER, "reserved for the gateways' own messages")]
    reachable: list[tuple[str, Route]] = []
    warnings = []
    for route in routes:
        taken = []
        for text in route.filters:
            wider = next(((wide, whose) for wide, whose in before if covers(wide, text)), None)
            if wider is None:
                reachable.append((text, route))
            else:
                taken.append(f"{text!r} behind {wider[0]!r} ({wider[1]})")
        if len(taken) == len(route.filters):
            raise ConfigError(
                f"route {route.name!r} can never match, because earlier filters take all of its topics: "
                f"{', '.join(taken)}; put the narrower route first"
            )
        if taken:
            warnings.append(f"route {route.name!r} has filters that can never match: {', '.join(taken)}")
        before += [(text, f"route {route.name!r}") for text in route.filters]
    return reachable, warnings


def _overlap_warnings(cover: Cover) -> list[str]:
    """A sentence for each pair of filters for which a broker delivers a topic twice."""
    return [
        f"the filters {one!r} and {other!r} overlap: the broker delivers topics matching {both!r} once for each, "
        f"so Kafka gets such messages twice; one filter {instead!r} in place of both avoids it, "
        "but also fetches topics that neither matches"
        for one, other, both, instead in cover.overlaps
        if both  # '+' and '/#' have only the empty topic in common, to which nobody can publish
    ]
