"""Relations between the settings of commands, and with routes and the MQTT side."""

import re
from collections.abc import Iterator
from typing import Final

from config.relations.rules import Rule, names_apart
from config.settings import Settings
from config.tables.commands import CommandSettings
from config.tables.routes import RouteSettings
from config.values.topic_filters import covers, intersection

SECRET_LENGTH: Final = 32
_PLACEHOLDER = re.compile(r"[^/]*\$\{[^}]*\}[^/]*")
_HEADERS: Final = ("topic", "properties", "device")


def as_filter(topic: str) -> str:
    """The MQTT filter of all topics that a template of commands can make: a level with a placeholder is ``+``."""
    return _PLACEHOLDER.sub("+", topic)


def as_filters(topic: str) -> tuple[str, ...]:
    """The filters of all topics that commands can have: a command without a subject leaves that level out."""
    without = "/".join(level for level in topic.split("/") if level != "${subject}")
    return tuple(dict.fromkeys((as_filter(topic), as_filter(without))))


def _topics(settings: Settings) -> Iterator[str]:
    """Refuses command topics to which the gateway itself writes, and status topics with other records."""
    theirs = {topic: number for number, one in enumerate(settings.commands) for topic in one.topics}
    taken = {settings.ledger.topic: "ledger.topic", settings.dead_letter.topic: "dead_letter.topic"}
    for number, route in enumerate(settings.routes):
        if route.dead_letter_topic is not None:
            taken.setdefault(route.dead_letter_topic, f"routes.{number}.dead_letter_topic")
    routed = {route.topic: f"routes.{number}.topic" for number, route in enumerate(settings.routes)}
    for number, one in enumerate(settings.commands):
        for topic in one.topics:
            if topic in taken:
                yield (
                    f"<commands.{number}.topics> has <{taken[topic]}>: the gateway's own records would be taken for "
                    "commands, and its dead letters of them for further ones, without end; name another topic."
                )
        if one.status_topic in theirs:
            yield (
                f"<commands.{number}.status_topic> is also one of commands.{theirs[one.status_topic]}.topics: statuses "
                "would be taken for commands; name another topic."
            )
        elif (other := taken.get(one.status_topic) or routed.get(one.status_topic)) is not None:
            yield (
                f"<commands.{number}.status_topic> is also <{other}>, whose records have another form; name another "
                "topic."
            )


def _groups(settings: Settings) -> Iterator[str]:
    """Refuses one consumer group for two tables of commands."""
    first: dict[str, int] = {}
    for number, one in enumerate(settings.commands):
        if one.group and first.setdefault(one.group, number) != number:
            yield (
                f"<commands.{number}.group> is also <commands.{first[one.group]}.group>: a worker would be one member "
                "twice, and each would put the other out; give each its own group."
            )


def _ways_back(settings: Settings) -> Iterator[str]:
    """Refuses settings of answers, deliveries or presence whose route cannot bring them back."""
    routes = {route.name: (index, route) for index, route in enumerate(settings.routes)}
    for number, one in enumerate(settings.commands):
        for setting in ("answers", "delivered_by", "presence"):
            name = getattr(one, setting)
            if name is None:
                continue
            if name not in routes:
                yield (
                    f"<commands.{number}.{setting}> names no route; it needs one of routes[].name, which brings these "
                    "messages to Kafka."
                )
                continue
            yield from _way_back(f"commands.{number}.{setting}", one, *routes[name], answers=setting == "answers")


def _way_back(setting: str, one: CommandSettings, index: int, route: RouteSettings, *, answers: bool) -> Iterator[str]:
    """Why the route that ``setting`` names (by its number and table) cannot bring messages of commands back."""
    if route.device is None:
        yield (
            f"<{setting}>: <routes.{index}.device> must say whose message it is, such as "
            'device = "${topic[1]}"; otherwise anybody could answer for a device.'
        )
    if "$" in route.topic:
        yield f"<{setting}>: <routes.{index}.topic> must be one Kafka topic, which each worker reads."
    if route.qos == 0:
        yield f"<{setting}>: <routes.{index}.qos> must be 1 or 2: with 0 an answer may be lost."
    if missing := [header for header in _HEADERS if header not in route.metadata_headers]:
        yield (
            f"<{setting}>: <routes.{index}.metadata_headers> lacks {', '.join(map(repr, missing))}, by which an answer "
            "finds its command."
        )
    if answers and one.response_topic:
        response = as_filter(one.response_topic)
        if not any(covers(filter_, response) for filter_ in route.filters):
            yield (
                f"<{setting}>: no filter of <routes.{index}.filters> matches all topics of {response!r} "
                f"(<{setting.removesuffix('answers')}response_topic>): answers would be lost."
            )


def _promises(settings: Settings) -> Iterator[str]:
    """Refuses promises about answers and deliveries that other settings of the table do not let the gateway keep."""
    for number, one in enumerate(settings.commands):
        at = f"commands.{number}"
        signed = one.answers is not None or one.delivered_by is not None
        if signed and one.secret is None:
            yield (
                f"<{at}.secret> is required with answers or delivered_by: it signs what a device sends back; make one "
                "with: openssl rand -hex 32."
            )
        elif one.secret is not None and len(one.secret.get_secret_value()) < SECRET_LENGTH:
            yield f"<{at}.secret> is shorter than {SECRET_LENGTH} characters and could be guessed."
        if one.response_required and one.answers is None:
            yield f"<{at}.response_required> without {at}.answers: no route brings the answers; name one."
        if "delivered" in (one.confirm, one.release) and one.delivered_by is None:
            yield (
                f'<{at}.confirm> and <{at}.release>: "delivered" needs {at}.delivered_by, the route of EMQX\'s events; '
                "otherwise nothing reports a delivery."
            )
        if one.qos == 0 and (one.confirm == "delivered" or one.response_required):
            yield (
                f"<{at}.qos> beside <{at}.confirm> and <{at}.response_required>: a message of QoS 0 is only known to "
                "be sent; use 1."
            )
        if settings.mqtt.protocol == "3.1.1" and one.answers is not None and "${id}" not in one.mqtt_topic:
            yield (
                f"<{at}.mqtt_topic> lacks ${{id}}: with <mqtt.protocol> a device learns the command's id from the "
                "topic alone."
            )


def _own_routes(settings: Settings) -> Iterator[str]:
    """Refuses routes that would bring the gateway's own commands back to Kafka."""
    for number, one in enumerate(settings.commands):
        topics = as_filters(one.mqtt_topic)
        for index, route in enumerate(settings.routes):
            if any(intersection(filter_, topic) is not None for filter_ in route.filters for topic in topics):
                yield (
                    f"<commands.{number}.mqtt_topic> is matched by <routes.{index}.filters>: each command would come "
                    "back to Kafka, and the broker could not say that no device subscribes; narrow the filters."
                )
                break


REFUSED = (
    names_apart("commands", "metrics and statuses"),
    Rule(("commands", "ledger.topic", "dead_letter.topic", "routes"), _topics),
    Rule(("commands",), _groups),
    Rule(("commands", "routes"), _ways_back),
    Rule(("commands", "mqtt.protocol"), _promises),
    Rule(("commands", "routes"), _own_routes),
)


def _unordered(settings: Settings) -> Iterator[str]:
    """Warns of several commands under way to one device, which may then change their order."""
    for number, one in enumerate(settings.commands):
        if one.in_flight > 1:
            yield f"<commands.{number}.in_flight>: a device may get and finish its commands in another order."


def _offline(settings: Settings) -> Iterator[str]:
    """Warns of when_offline = "fail" with MQTT 3.1.1, where it does nothing."""
    for number, one in enumerate(settings.commands):
        if settings.mqtt.protocol == "3.1.1" and one.when_offline == "fail":
            yield (
                f"<commands.{number}.when_offline> has no effect, since <mqtt.protocol>: the broker does not say that "
                "nobody subscribes, and the command counts as sent."
            )


WARNED = (Rule(("commands",), _unordered), Rule(("commands", "mqtt.protocol"), _offline))
