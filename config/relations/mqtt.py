"""Relations between the settings of the MQTT side."""

from collections.abc import Collection, Iterator
from difflib import get_close_matches

from config.relations.client_tls import tls_files, unverified
from config.relations.rules import Rule, changed, names_apart, value, when
from config.settings import Settings
from config.values.addresses import parse_mqtt_address
from config.values.grammar import format_duration
from config.values.names import placeholders
from config.values.topic_filters import covers, disjoint_groups

_IN_CLIENT_ID = ("instance", "worker", "session")
_OF_CLIENT_IDS = ("mqtt.client_id", "mqtt.sessions", "mqtt.groups", "worker", "workers")
_MANY_WORKERS = 100  # where their number is that of the CPUs, which may be few


def placeholders_known(path: str, *known: str) -> Rule:
    """A rule that refuses placeholders in the text at ``path`` that are not ``known``, or cannot be read."""

    def find(settings: Settings) -> Iterator[str]:
        if (wrong := _wrong_placeholder(value(settings, path), known)) is not None:
            yield f"<{path}>: {wrong}."

    return Rule((path,), find)


def _wrong_placeholder(text: str, known: Collection[str]) -> str | None:
    """What is wrong with the text's placeholders, or None."""
    try:
        names = placeholders(text)
    except ValueError as error:
        return str(error)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean ${{{near[0]}}}? " if near else ""
            return f"${{{name}}} is unknown here; {hint}known are {', '.join(f'${{{one}}}' for one in known)}"
    return None


def one_topic(settings: Settings, path: str) -> Iterator[str]:
    """Why nothing can be published to the topic at ``path``. Its only placeholder is ``${instance}``."""
    text: str = value(settings, path)
    topic = text.replace("${instance}", settings.instance)
    if (wrong := _wrong_placeholder(text, ("instance",))) is not None:
        yield f"<{path}>: {wrong}."
    elif any(character in topic for character in "+#\x00"):
        yield f'<{path}> holds "+", "#" or NUL: messages are published to one topic, without wildcards.'
    elif topic.startswith("$"):
        yield f'<{path}> starts with "$": such topics are the broker\'s own; choose another.'


def _client_id_lacks(name: str, settings: Settings) -> bool:
    text = settings.mqtt.client_id
    return _wrong_placeholder(text, _IN_CLIENT_ID) is None and f"${{{name}}}" not in text


def _client_ids_meet(settings: Settings, unset: int) -> Iterator[str]:
    """Two sessions with one client id. ``unset``: the number of workers where the settings leave it open."""
    text, mqtt = settings.mqtt.client_id, settings.mqtt
    if not all(f"${{{name}}}" in text for name in ("worker", "session")):
        return
    names = [str(number) for number in range(mqtt.sessions)]
    names += [f"{group.name}-{number}" for group in mqtt.groups for number in range(group.sessions)]
    workers = settings.worker + 1 if settings.workers == 0 else settings.workers or unset
    first: dict[str, str] = {}
    for worker in range(min(workers, _MANY_WORKERS)):
        for name in names:
            whose = f"session {name} of worker {worker}"
            other = first.setdefault(text.replace("${worker}", str(worker)).replace("${session}", name), whose)
            if other != whose:
                yield (
                    f"<mqtt.client_id> would be the same for {other} and {whose}: each would end the other's "
                    'connection; put a "-" between ${worker} and ${session}.'
                )
                return


def _session_groups(settings: Settings) -> Iterator[str]:
    """Refuses a route's unknown group, and sessions for which no route is left."""
    names = [group.name for group in settings.mqtt.groups]
    wanted = {route.group for route in settings.routes}
    for number, route in enumerate(settings.routes):
        if route.group and route.group not in names:
            near = get_close_matches(route.group, names, 1)
            hint = f' Perhaps "{near[0]}" is meant.' if near else " Add a [[mqtt.groups]] table of that name."
            yield f"<routes.{number}.group> names no group of mqtt.groups.{hint}"
    if not settings.routes:
        return
    for name in names:
        if name not in wanted:
            yield (
                f'<mqtt.groups> has "{name}", but no route has group = "{name}": its sessions would have nothing to '
                "subscribe to; remove it, or name it in a route."
            )
    if "" not in wanted:
        yield (
            "every route has a group, so the sessions of mqtt.sessions would have nothing to subscribe to; leave the "
            "largest route without a group."
        )


def _partitioned(settings: Settings) -> Iterator[str]:
    """Refuses ``distribution = "partitioned"`` with more sessions than filters, or with several workers."""
    mqtt, routes = settings.mqtt, settings.routes
    if mqtt.distribution != "partitioned" or not routes:
        return
    sessions = {"": mqtt.sessions} | {group.name: group.sessions for group in mqtt.groups}
    for name, count in sessions.items():
        own = disjoint_groups(text for route in routes if route.group == name for text in route.filters)
        if len(own) < count:
            of_group = f' of group "{name}"' if name else ""
            wanted = f"mqtt.groups gives it {count} sessions" if name else "<mqtt.sessions>"
            yield (
                f"<mqtt.distribution> gives each session filters of its own, but the routes{of_group} have only "
                f"{len(own)} that share no topic and {wanted}: some sessions would get nothing; split the filters (for "
                'example "plant/1/#", "plant/2/#"), or use fewer sessions.'
            )
    several = "<worker> says that there are several workers" if settings.worker else "<workers>"
    if settings.worker or (settings.workers or 0) > 1:
        yield (
            f'<mqtt.distribution>, but {several}: each would receive every message; use "shared", or one worker with '
            "more sessions."
        )


REFUSED = (
    placeholders_known("mqtt.client_id", *_IN_CLIENT_ID),
    when(
        lambda s: _client_id_lacks("session", s) and s.mqtt.sessions + len(s.mqtt.groups) > 1,
        "<mqtt.client_id> has no ${session}, but there are several sessions (<mqtt.sessions>, and those of "
        "mqtt.groups): all would have one client id, and the broker ends the older session of two with the same; add "
        "${session}.",
        "mqtt.groups",
    ),
    when(
        lambda s: _client_id_lacks("worker", s) and s.worker > 0,
        "<mqtt.client_id> has no ${worker}, but <worker> says that there are several workers: they would end each "
        "other's sessions; add ${worker}.",
    ),
    when(
        lambda s: _client_id_lacks("worker", s) and (s.workers or 0) > 1,
        "<mqtt.client_id> has no ${worker}, but <workers>: they would end each other's sessions; add ${worker}.",
    ),
    Rule(_OF_CLIENT_IDS, lambda s: _client_ids_meet(s, 1)),
    when(
        lambda s: s.mqtt.persistent and s.mqtt.protocol == "5" and not s.mqtt.session_expiry,
        "<mqtt.session_expiry>, but <mqtt.persistent>: the session would end with its connection and what waits in it "
        "would be lost; give it time, or set persistent to false.",
        "mqtt.protocol",
    ),
    when(
        lambda s: (
            s.mqtt.persistent
            and s.mqtt.protocol == "5"
            and s.mqtt.session_expiry
            and s.mqtt.session_expiry < s.mqtt.reconnect_max
        ),
        "<mqtt.session_expiry> is shorter than <mqtt.reconnect_max>: the session may expire while the gateway waits to "
        "reconnect, and what waits in it is lost; raise the first or lower the second.",
        "mqtt.persistent",
        "mqtt.protocol",
    ),
    when(
        lambda s: s.mqtt.reconnect_initial > s.mqtt.reconnect_max,
        "<mqtt.reconnect_initial> is longer than <mqtt.reconnect_max>: the wait starts above its own ceiling; lower "
        "the first or raise the second.",
    ),
    when(
        lambda s: changed(s, "mqtt.tls") and not any(parse_mqtt_address(text).encrypted for text in s.mqtt.addresses),
        "<mqtt.tls> is given, but <mqtt.addresses> has no mqtts:// or wss:// address: nothing would be encrypted; "
        "write mqtts:// (usually port 8883), or remove the table.",
    ),
    Rule(("mqtt.tls",), lambda s: tls_files(s, "mqtt.tls")),
    Rule(("mqtt.status.topic", "instance"), lambda s: one_topic(s, "mqtt.status.topic")),
    names_apart("mqtt.groups", "routes and client ids"),
    Rule(("mqtt.groups", "routes"), _session_groups),
    Rule(("mqtt.distribution", "mqtt.sessions", "mqtt.groups", "routes", "worker", "workers"), _partitioned),
)


def _keepalive(settings: Settings) -> Iterator[str]:
    """Warns of a keepalive that ends sessions while one Kafka request hangs."""
    keepalive = settings.mqtt.keepalive
    if keepalive < settings.kafka.request_timeout:
        yield (
            "<mqtt.keepalive> is shorter than <kafka.request_timeout>: the MQTT broker ends a silent session after "
            f"{format_duration(keepalive * 1.5)}, sooner than one hanging Kafka request ends; a stall of the machine "
            "then ends all sessions, and their windows are delivered again."
        )


def _qos0(settings: Settings) -> Iterator[str]:
    """Warns of QoS 0 beside persistent sessions, which do not keep such messages."""
    for number, route in enumerate(settings.routes):
        if settings.mqtt.persistent and route.qos == 0:
            yield (
                f"<routes.{number}.qos>, but <mqtt.persistent>: messages at QoS 0 are not acknowledged, so those of "
                f'route "{route.name}" are lost at every break in spite of the session; use QoS 1.'
            )


def _own_status(settings: Settings) -> Iterator[str]:
    """Warns of the first route that takes the gateway's own status messages."""
    status = settings.mqtt.status
    topic = status.topic.replace("${instance}", settings.instance)
    if not status.enabled or topic.startswith("gateways/"):
        return
    for number, route in enumerate(settings.routes):
        if any(covers(text, topic) for text in route.filters):
            yield (
                f"<mqtt.status.topic> is matched by <routes.{number}.filters>: the gateway's own birth and death "
                "messages would go to Kafka; keep it below gateways/, which no route takes."
            )
            return


def _properties(settings: Settings) -> Iterator[str]:
    """Warns of templates with user properties, which MQTT 3.1.1 does not have."""
    if settings.mqtt.protocol != "3.1.1":
        return
    for number, route in enumerate(settings.routes):
        templates = (route.topic, route.key, route.device or "", route.message_id or "", *route.headers.values())
        if any("${property." in text for text in templates):
            yield (
                f"<routes.{number}.name> uses ${{property.…}}, but <mqtt.protocol>: messages then carry no user "
                "properties, so the value is always missing; use protocol 5."
            )


WARNED = (
    unverified("mqtt"),
    Rule(
        (*_OF_CLIENT_IDS, "mqtt.distribution"),
        lambda s: _client_ids_meet(s, 1 if s.mqtt.distribution == "partitioned" else _MANY_WORKERS),
    ),
    Rule(("mqtt.keepalive", "kafka.request_timeout"), _keepalive),
    Rule(("routes", "mqtt.persistent"), _qos0),
    Rule(("mqtt.status", "routes", "instance"), _own_status),
    Rule(("mqtt.protocol", "routes"), _properties),
)
