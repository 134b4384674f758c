"""Likely mistakes in routes, found from settings alone: routes that are never reached, topics delivered twice,
templates without a value, keys that spread the records of a device.

    FAIL    the gateway does not start with it, or a route does nothing
    warn    order, copies or dead letters are probably not as intended
    ok      worth knowing, and mostly intended

Every finding is certain, because filters are sets of topics. Its example is a topic of these sets.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final, Literal

from bridge.routing.filters import covered_by_all, example_topic
from bridge.routing.router import RESERVED_FILTER, Route, Router
from bridge.routing.template import Template
from config.errors import ConfigError
from config.loading.live import same
from config.settings import InterceptorSettings, RouteSettings, Settings
from config.tables.routes import ANY_TOPIC
from config.values.patterns import compile_pattern
from config.values.topic_filters import covers, intersection

Severity = Literal["ok", "warn", "FAIL"]

SURE: Final = frozenset(
    {"constant-key", "interceptor-idle", "interceptor-twice", "keys-differ", "level-missing", "tombstone-without-key"}
)
"""Findings that are almost always mistakes. ``gateway config check`` shows them too."""

# Interceptors whose repetition with the same options has no effect.
_ONCE: Final = frozenset({"age_out", "fields", "filter", "headers", "json_schema", "mask"})


@dataclass(frozen=True, slots=True)
class Finding:
    """``id`` never changes; ``routes`` are names of routes, ``example`` is an MQTT topic that shows the finding."""

    severity: Severity
    id: str
    routes: tuple[str, ...]
    sentence: str
    advice: str
    example: str | None = None


def lint(settings: Settings) -> list[Finding]:
    """All findings about the routes of these settings, the worst first, then in their order."""
    found: list[Finding] = []
    routes: list[Route] = []
    for number, one in enumerate(settings.routes):
        try:
            routes.append(
                Route(one, index=number, instance=settings.instance, reserved_topics=settings.own_topics)
            )  # fmt: skip
        except ConfigError as error:
            found += [Finding("FAIL", "broken", (one.name,), problem, "correct it") for problem in error.problems]
    by_name = {route.name: route for route in settings.routes}
    found += _names(settings.routes)
    found += _reach(routes)
    found += _copies(settings, routes)
    for route in routes:
        found += _about(route, by_name[route.name], settings)
    found += _keys_that_differ(routes, by_name)
    order = {"FAIL": 0, "warn": 1, "ok": 2}
    return sorted(found, key=lambda finding: order[finding.severity])


def _names(routes: Sequence[RouteSettings]) -> Iterator[Finding]:
    names = [route.name for route in routes]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        sentence = f"{names.count(name)} routes are named {name!r}; metrics and dead letters tell them apart by name."
        yield Finding("FAIL", "same-name", (name,), sentence, "name each once")


# --- which route a message takes ---


def _reach(routes: Sequence[Route]) -> Iterator[Finding]:
    """Routes and filters that are never reached, and topics that two routes ask for."""
    before: list[tuple[str, str]] = [(RESERVED_FILTER, "")]
    for route in routes:
        taken = [text for text in route.filters if covered_by_all(text, [wide for wide, _ in before])]
        whose = sorted({name for text in taken for wide, name in before if name and intersection(wide, text)})
        by = f"{' and '.join(map(repr, whose))} before it" if whose else "the gateways' own messages below gateways/"
        names = (route.name, *whose)
        if len(taken) == len(route.filters):
            sentence = f"Route {route.name!r} is never reached: {by} take all that {_listed(taken)} ask for."
            yield Finding("FAIL", "unreachable", names, sentence, "put the narrower route first, or leave this one out",
                          example_topic(taken[0]))  # fmt: skip
        elif taken:
            sentence = f"Of route {route.name!r}, {_listed(taken)} never match: {by} take all of it."
            yield Finding("warn", "unreachable-filter", names, sentence, "leave the filter out, or put it first",
                          example_topic(taken[0]))  # fmt: skip
        yield from _overlaps(route, taken, before)
        before += [(text, route.name) for text in route.filters]


def _overlaps(route: Route, taken: Sequence[str], before: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Earlier routes that take a part of this route's topics, each once. ``taken`` are its filters without effect."""
    said: set[str] = set()
    for text in route.filters:
        for wide, name in before:
            both = None if not name or name in said or text in taken else intersection(wide, text)
            topic = None if both is None else example_topic(both)
            if topic is None:
                continue
            said.add(name)
            sentence = f"Topics such as {topic!r} match {wide!r} of route {name!r} and {text!r} of route {route.name!r}"
            if covers(text, wide):
                sentence += f"; {name!r} takes them, being the narrower one in front."
                yield Finding("ok", "narrower-first", (name, route.name), sentence, "nothing, if that is meant", topic)
            else:
                sentence += f", and neither filter is a part of the other; {name!r} takes them, because it comes first."
                advice = "if they belong to the other route, exchange the two"
                yield Finding("warn", "shadowed", (name, route.name), sentence, advice, topic)


def _copies(settings: Settings, routes: Sequence[Route]) -> Iterator[Finding]:
    """Topics that a broker delivers more than once."""
    try:
        router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
    except ConfigError:
        return  # already reported; overlaps are found once it is corrected
    for group, cover in router.covers.items():
        for overlap in cover.overlaps:
            topic = example_topic(overlap.both)
            if topic is not None:
                sentence = (
                    f"EMQX delivers a message to {topic!r} twice, once for {overlap.first!r} and once for "
                    f"{overlap.second!r}, so Kafka gets it twice{f' (session group {group})' if group else ''}."
                )
                advice = (
                    f"subscribe to {overlap.instead!r} in one route, which also fetches what neither wants, or make "
                    "the filters disjoint"
                )
                names = tuple(r.name for r in routes if {overlap.first, overlap.second} & set(r.filters))
                yield Finding("warn", "delivered-twice", names, sentence, advice, topic)
    for one, other in combinations(router.covers, 2):
        for first in router.covers[one].subscriptions:
            for second in router.covers[other].subscriptions:
                both = intersection(first.filter, second.filter)
                topic = None if both is None else example_topic(both)
                if topic is None:
                    continue
                sentence = (
                    f"Sessions of two groups ({one or 'mqtt.sessions'}: {first.filter!r}, {other or 'mqtt.sessions'}: "
                    f"{second.filter!r}) both fetch {topic!r}; the gateway drops one of the two copies (other_group)."
                )
                yield Finding("ok", "fetched-twice", (), sentence, "narrow one of the filters to save the copy", topic)


# --- one route by itself ---


def _about(route: Route, settings: RouteSettings, whole: Settings) -> Iterator[Finding]:
    """Findings about one route alone. ``settings`` are its own, ``whole`` all."""
    yield from _levels(route)
    yield from _key(route, settings)
    if route.kafka_topic is None and settings.allowed_topics == ANY_TOPIC:
        sentence = (
            f"Route {route.name!r} makes Kafka topics from {settings.topic!r}, and allowed_topics allows any name: a "
            f"device that may publish chooses up to {settings.max_topics} topics."
        )
        yield Finding("warn", "any-topic", (route.name,), sentence, "narrow allowed_topics to what devices may choose")
    if route.kafka_topic is None:
        yield from _own_topics(route, settings, whole)
    if route.tombstones and route.key_template is not None and "payload" in route.key_template.needs:
        sentence = (
            f"Route {route.name!r} deletes a key when the payload is empty, and makes the key from the payload: every "
            "such message becomes a dead letter."
        )
        yield Finding("warn", "tombstone-without-key", (route.name,), sentence, "take the key from the topic")
    chain = [*whole.interceptors, *settings.interceptors]
    for one, next_one in pairwise(chain):
        if one.use in _ONCE and _alike(one, next_one):
            sentence = (
                f"Route {route.name!r}: the interceptor {one.label!r} is there twice in a row, with equal options."
            )
            yield Finding("warn", "interceptor-twice", (route.name,), sentence, "leave one of the two out")
    yield from _keeps_all(route, chain)


def _alike(one: InterceptorSettings, other: InterceptorSettings) -> bool:
    return one.use == other.use and same(one.secret, other.secret) and one.model_extra == other.model_extra


def _keeps_all(route: Route, chain: Sequence[InterceptorSettings]) -> Iterator[Finding]:
    for one in chain:
        if one.use == "sample" and one.options.get("share") == 1:
            sentence = f"Route {route.name!r}: the interceptor {one.label!r} has share = 1, so it drops nothing."
            yield Finding("warn", "interceptor-idle", (route.name,), sentence, "leave it out, or lower its share")


def _levels(route: Route) -> Iterator[Finding]:
    """Levels that only some topics of a filter with '#' have."""
    for setting, template in route.templates():
        for level in dict.fromkeys(template.levels):
            depth = level + 1 if level >= 0 else -level
            short = next((text for text in route.filters if _shortest(text) < depth and text.endswith("#")), None)
            if short is None:
                continue
            topic = example_topic(short, levels=max(1, _shortest(short)))
            consequence, severity = _MISSING.get(setting, ("that header is left out", "ok"))
            if _shortest(short) == depth - 1:
                severity = "ok"  # only the topic before '/#', to which devices seldom publish
            if setting == "key" and route.tombstones:
                consequence = _MISSING["topic"][0]
            yield Finding(
                severity, "level-missing", (route.name,),
                f"Route {route.name!r}, {setting}: {template.text!r} has no value for short topics of {short!r}, such "
                f"as {topic!r}: {consequence}.",
                "add a route for the short topics, or take the value from another place", topic,
            )  # fmt: skip


_MISSING: Final[dict[str, tuple[str, Severity]]] = {
    "topic": ("such a message becomes a dead letter", "warn"),
    "key": ("such a record has no key, so it has no order", "warn"),
}


def _shortest(text: str) -> int:
    """The number of levels of the shortest topic that a filter matches."""
    levels = text.split("/")
    return max(1, len(levels) - (levels[-1] == "#"))


def _key(route: Route, settings: RouteSettings) -> Iterator[Finding]:
    """Keys that are missing, the same for many topics, or give a device no order."""
    template = route.key_template
    name = route.name
    if template is None:
        sentence = f'Route {name!r} has no key (key = ""): its records are spread over all partitions, in no order.'
        yield Finding("warn", "no-key", (name,), sentence, 'key = "${topic}" or "${device}", if order matters')
        return
    fixed = [text for text in route.filters if _is_fixed(template, text)]
    if any("+" in text or "#" in text for text in fixed):
        sentence = (
            f"Route {name!r}: the key {settings.key!r} is the same for every topic of {_listed(fixed)}, so all of them "
            "go to one partition."
        )
        advice = "use a level that differs from device to device, ${topic} or ${device}"
        yield Finding("warn", "constant-key", (name,), sentence, advice, example_topic(fixed[0]))
    elif settings.device is not None and settings.key == "${topic}" and not _one_topic_each(route):
        sentence = (
            f"Route {name!r} knows the device ({settings.device!r}), but is keyed by the topic: a device that "
            "publishes to several topics has no order among them."
        )
        yield Finding("ok", "key-not-device", (name,), sentence, 'key = "${device}", if that order matters')


def _one_topic_each(route: Route) -> bool:
    """Whether each device has one topic: the only wildcard is the device's level."""
    levels = route.device_levels()
    return len(route.filters) == 1 and levels is not None and all(
        level not in ("+", "#") or number in levels for number, level in enumerate(route.filters[0].split("/"))
    )  # fmt: skip


def _is_fixed(template: Template, text: str) -> bool:
    """Whether the template gives the same for every topic of a filter: it reads only levels without a wildcard."""
    levels = text.split("/")
    for part in template.parts:
        if isinstance(part, str):
            continue
        if part.kind != "level":
            return False
        number = int(part.argument)
        if levels[-1] == "#" and (number < 0 or number >= len(levels) - 1):
            return False
        if not -len(levels) <= number < len(levels) or levels[number] in ("+", "#"):
            return False
    return True


def _own_topics(route: Route, settings: RouteSettings, whole: Settings) -> Iterator[Finding]:
    """Templates that can make the name of one of the gateway's own topics."""
    made = "".join(re.escape(part) if isinstance(part, str) else ".+" for part in route.topic_template.parts)
    pattern, allowed = compile_pattern(made), compile_pattern(settings.allowed_topics)
    for topic in sorted(whole.own_topics):
        if pattern.is_all_of(topic) and allowed.is_all_of(topic):
            sentence = (
                f"Route {route.name!r}: {settings.topic!r} can make {topic!r}, which the gateway writes itself: such a "
                "message becomes a dead letter."
            )
            advice = "nothing, or let allowed_topics exclude it"
            yield Finding("ok", "own-topic", (route.name,), sentence, advice)


# --- routes among each other ---


def _keys_that_differ(routes: Sequence[Route], settings: dict[str, RouteSettings]) -> Iterator[Finding]:
    """Kafka topics to which several routes write with different keys."""
    by_topic: dict[str, list[Route]] = {}
    for route in routes:
        if route.kafka_topic is not None:
            by_topic.setdefault(route.kafka_topic, []).append(route)
    for topic, several in by_topic.items():
        keys = dict.fromkeys(settings[route.name].key for route in several)
        if len(keys) > 1:
            names = tuple(route.name for route in several)
            sentence = (
                f"Routes {_listed(names)} write to the Kafka topic {topic!r} with different keys "
                f"({', '.join(keys) or 'none'}): what is of one device may be in several partitions."
            )
            yield Finding("warn", "keys-differ", names, sentence, "give them the same key, or topics of their own")


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(map(repr, texts))
