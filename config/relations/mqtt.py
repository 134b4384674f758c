"""Relations between the settings of the MQTT side."""

from __future__ import annotations

__all__ = ["REFUSED", "WARNED"]

from difflib import get_close_matches
from typing import TYPE_CHECKING

from config.relations.rules import Rule, View
from config.values.addresses import parse_mqtt_address
from config.values.grammar import format_duration
from config.values.names import disjoint_groups, filter_covers, placeholders

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from config.tls import TlsSettings


def _client_ids(view: View) -> Iterator[str]:
    text = view.settings.mqtt.client_id
    if (wrong := wrong_placeholder(text, ("instance", "worker", "session"))) is not None:
        yield f"{view.say('mqtt', 'client_id')}: {wrong}."
        return
    names = placeholders(text)
    if view.settings.mqtt.sessions > 1 and "session" not in names:
        yield (
            f"{view.say('mqtt', 'client_id')} has no ${{session}}, but {view.say('mqtt', 'sessions')}: all sessions "
            "would have one client id, and the broker ends the older session of two with the same; add ${session}."
        )
    if view.settings.mqtt.groups and view.settings.mqtt.sessions == 1 and "session" not in names:
        yield (
            f"{view.say('mqtt', 'client_id')} has no ${{session}}, but mqtt.groups has sessions of its own: all would "
            "have one client id, and the broker ends the older session of two with the same; add ${session}."
        )
    if view.settings.worker > 0 and "worker" not in names:
        yield (
            f"{view.say('mqtt', 'client_id')} has no ${{worker}}, but {view.say('worker')} says that there are "
            "several workers: they would end each other's sessions; add ${worker}."
        )
    if (view.settings.workers or 0) > 1 and "worker" not in names:
        yield (
            f"{view.say('mqtt', 'client_id')} has no ${{worker}}, but {view.say('workers')}: they would end each "
            "other's sessions; add ${worker}."
        )


def wrong_placeholder(text: str, known: Collection[str]) -> str | None:
    """A sentence about the first placeholder of ``text`` that is not ``known``, or cannot be read; None when all is
    well."""
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


def _session_expiry(view: View) -> Iterator[str]:
    mqtt = view.settings.mqtt
    if not mqtt.persistent or mqtt.protocol != "5":
        return
    if not mqtt.session_expiry:
        yield (
            f"{view.say('mqtt', 'session_expiry')}, but {view.say('mqtt', 'persistent')}: the session would end with "
            "its connection and what waits in it would be lost; give it time, or set persistent to false."
        )
    elif mqtt.session_expiry < mqtt.reconnect_max:
        yield (
            f"{view.say('mqtt', 'session_expiry')} is shorter than {view.say('mqtt', 'reconnect_max')}: the session "
            "may expire while the gateway waits to reconnect, and what waits in it is lost; raise the first or lower "
            "the second."
        )


def _reconnect(view: View) -> Iterator[str]:
    if view.settings.mqtt.reconnect_initial > view.settings.mqtt.reconnect_max:
        yield (
            f"{view.say('mqtt', 'reconnect_initial')} is longer than {view.say('mqtt', 'reconnect_max')}: the wait "
            "starts above its own ceiling; lower the first or raise the second."
        )


def _tls_is_used(view: View) -> Iterator[str]:
    if view.changed("mqtt", "tls") and not any(
        parse_mqtt_address(text).encrypted for text in view.settings.mqtt.addresses
    ):
        yield (
            f"{view.say('mqtt', 'tls')} is given, but {view.say('mqtt', 'addresses')} has no mqtts:// or wss:// "
            "address: nothing would be encrypted; write mqtts:// (usually port 8883), or remove the table."
        )
    yield from tls_files(view, "mqtt")


def tls_files(view: View, side: str) -> Iterator[str]:
    """The parts of a client certificate that need each other, for ``mqtt.tls`` or ``kafka.tls``."""
    tls: TlsSettings = view.value(side, "tls")
    for name in ("key_file", "key_password"):
        if view.value(side, "tls", name) is not None and tls.certificate_file is None:
            yield (
                f"{view.say(side, 'tls', name)} is given without {side}.tls.certificate_file: a key alone identifies "
                "nobody; give the certificate too, or remove the key."
            )


def _status_topic(view: View) -> Iterator[str]:
    text = view.settings.mqtt.status.topic
    say = view.say("mqtt", "status", "topic")
    if (wrong := wrong_placeholder(text, ("instance",))) is not None:
        yield f"{say}: {wrong}."
    elif any(character in text for character in "+#\x00"):
        yield f'{say} holds "+", "#" or NUL: messages are published to one topic, without wildcards.'
    elif text.startswith("$"):
        yield f'{say} starts with "$": such topics are the broker\'s own, and it would refuse the will.'


def _session_groups(view: View) -> Iterator[str]:
    names = [group.name for group in view.settings.mqtt.groups]
    for number, name in enumerate(names):
        if name in names[:number]:
            origin = view.origin("mqtt", "groups")
            yield f'mqtt.groups has two groups named "{name}" ({origin}); give each its own name.'
    wanted = {route.group for route in view.settings.routes}
    for number, route in enumerate(view.settings.routes):
        if route.group and route.group not in names:
            near = get_close_matches(route.group, names, 1)
            hint = f' Perhaps "{near[0]}" is meant.' if near else " Add a [[mqtt.groups]] table of that name."
            yield f"{view.say('routes', number, 'group')} names no group of mqtt.groups.{hint}"
    for name in names:
        if view.settings.routes and name not in wanted:
            yield (
                f'mqtt.groups has "{name}" ({view.origin("mqtt", "groups")}), but no route has group = "{name}": its '
                "sessions would have nothing to subscribe to; remove it, or name it in a route."
            )
    if view.settings.routes and "" not in wanted:
        yield (
            "every route has a group, so the sessions of mqtt.sessions would have nothing to subscribe to; leave the "
            "largest route without a group."
        )


def _partitioned(view: View) -> Iterator[str]:
    if view.settings.mqtt.distribution != "partitioned" or not view.settings.routes:
        return
    mqtt = view.settings.mqtt
    sessions = {"": mqtt.sessions} | {group.name: group.sessions for group in mqtt.groups}
    for name, count in sessions.items():
        own = disjoint_groups(text for route in view.settings.routes if route.group == name for text in route.filters)
        if len(own) < count:
            of_group = f' of group "{name}"' if name else ""
            wanted = f"mqtt.groups gives it {count} sessions" if name else view.say("mqtt", "sessions")
            yield (
                f"{view.say('mqtt', 'distribution')} gives each session filters of its own, but the routes{of_group} "
                f"have only {len(own)} that share no topic and {wanted}: some sessions would get nothing; split the "
                'filters (for example "plant/1/#", "plant/2/#"), or use fewer sessions.'
            )
    if view.settings.worker > 0:
        yield (
            f"{view.say('mqtt', 'distribution')}, but {view.say('worker')} says that there are several workers: each "
            "would "
            'receive every message; use "shared", or one worker.'
        )
    if (view.settings.workers or 0) > 1:
        yield (
            f"{view.say('mqtt', 'distribution')}, but {view.say('workers')}: each would receive every message; use "
            '"shared", or one worker with more sessions.'
        )


REFUSED = (
    Rule(("mqtt.client_id", "mqtt.sessions", "mqtt.groups", "worker", "workers"), _client_ids),
    Rule(("mqtt.session_expiry", "mqtt.persistent", "mqtt.protocol", "mqtt.reconnect_max"), _session_expiry),
    Rule(("mqtt.reconnect_initial", "mqtt.reconnect_max"), _reconnect),
    Rule(("mqtt.tls", "mqtt.addresses"), _tls_is_used),
    Rule(("mqtt.status.topic",), _status_topic),
    Rule(("mqtt.groups", "routes"), _session_groups),
    Rule(("mqtt.distribution", "mqtt.sessions", "mqtt.groups", "routes", "worker", "workers"), _partitioned),
)


def _unverified(view: View) -> Iterator[str]:
    if not view.settings.mqtt.tls.verify:
        yield unverified(view, "mqtt")


def unverified(view: View, side: str) -> str:
    """The sentence about TLS that checks nothing."""
    return (
        f"{view.say(side, 'tls', 'verify')}: anybody on the way can pretend to be the broker and read the password; "
        f"name the authority in {side}.tls.ca_file instead."
    )


def _keepalive(view: View) -> Iterator[str]:
    mqtt, kafka = view.settings.mqtt, view.settings.kafka
    if mqtt.keepalive < kafka.request_timeout:
        yield (
            f"{view.say('mqtt', 'keepalive')} is shorter than {view.say('kafka', 'request_timeout')}: the MQTT broker "
            f"gives a silent session up after {format_duration(mqtt.keepalive * 1.5)}, sooner than one hanging Kafka "
            "request is; a stall of the machine then ends all sessions, and their windows are delivered again."
        )


def _qos0(view: View) -> Iterator[str]:
    if not view.settings.mqtt.persistent:
        return
    for number, route in enumerate(view.settings.routes):
        if route.qos == 0:
            yield (
                f"{view.say('routes', number, 'qos')}, but {view.say('mqtt', 'persistent')}: messages at QoS 0 are not "
                f'acknowledged, so those of route "{route.name}" are lost at every break in spite of the session; use '
                "QoS 1."
            )


def _websocket_unused(view: View) -> Iterator[str]:
    if any(parse_mqtt_address(text).websocket for text in view.settings.mqtt.addresses):
        return
    for name in ("websocket_path", "websocket_headers"):
        if view.changed("mqtt", name):
            yield (
                f"{view.say('mqtt', name)} has no effect, since {view.say('mqtt', 'addresses')} has no ws:// or wss:// "
                "address."
            )


def _expiry_unused(view: View) -> Iterator[str]:
    mqtt = view.settings.mqtt
    if not view.changed("mqtt", "session_expiry") or not mqtt.session_expiry:
        return
    if not mqtt.persistent:
        yield f"{view.say('mqtt', 'session_expiry')} has no effect, since {view.say('mqtt', 'persistent')}."
    elif mqtt.protocol == "3.1.1":
        yield (
            f"{view.say('mqtt', 'session_expiry')} has no effect, since {view.say('mqtt', 'protocol')}: there the "
            "broker alone decides how long a session lives."
        )


def _own_status(view: View) -> Iterator[str]:
    status = view.settings.mqtt.status
    topic = status.topic.replace("${instance}", view.settings.instance)
    if not status.enabled or topic.startswith("gateways/"):
        return
    for number, route in enumerate(view.settings.routes):
        for text in route.filters:
            if filter_covers(text, topic):
                yield (
                    f"{view.say('mqtt', 'status', 'topic')} is matched by {view.say('routes', number, 'filters')}: "
                    "the gateway's own birth and death messages would go to Kafka; keep it below gateways/, which no "
                    "route takes."
                )
                return


def _properties(view: View) -> Iterator[str]:
    if view.settings.mqtt.protocol != "3.1.1":
        return
    for number, route in enumerate(view.settings.routes):
        templates = (route.topic, route.key, route.device or "", route.message_id or "", *route.headers.values())
        if any("${property." in text for text in templates):
            yield (
                f"{view.say('routes', number, 'name')} uses ${{property.…}}, but {view.say('mqtt', 'protocol')}: "
                "messages then carry no user properties, so the value is always missing; use protocol 5."
            )


WARNED = (
    Rule(("mqtt.tls",), _unverified),
    Rule(("mqtt.keepalive", "kafka.request_timeout"), _keepalive),
    Rule(("routes", "mqtt.persistent"), _qos0),
    Rule(("mqtt.addresses", "mqtt.websocket_path", "mqtt.websocket_headers"), _websocket_unused),
    Rule(("mqtt.session_expiry", "mqtt.persistent", "mqtt.protocol"), _expiry_unused),
    Rule(("mqtt.status", "routes", "instance"), _own_status),
    Rule(("mqtt.protocol", "routes"), _properties),
)
