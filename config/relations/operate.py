"""Relations between the settings of those who operate the gateway: EMQX's REST API, the canary."""

from __future__ import annotations

__all__ = ["REFUSED", "WARNED"]

from typing import TYPE_CHECKING

from config.relations.mqtt import tls_files, unverified, wrong_placeholder
from config.relations.rules import Rule, View
from config.values.addresses import is_readable_on_the_way
from config.values.names import filter_covers

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATUS_FILTER = "gateways/#"


def _emqx_login(view: View) -> Iterator[str]:
    emqx = view.settings.emqx
    if emqx.url is None:
        for name in ("api_key", "api_secret"):
            if getattr(emqx, name) is not None:
                yield (
                    f"{view.say('emqx', name)} is given without emqx.url: nobody would be asked; give the address of "
                    'EMQX\'s REST API, as in "http://emqx.example:18083", or remove it.'
                )
        return
    for name in ("api_key", "api_secret"):
        if getattr(emqx, name) is None:
            yield (
                f"{view.say('emqx', 'url')} is given without emqx.{name}: EMQX answers nobody without a key; make one "
                "in its dashboard (System, API Key) or in its api_key.bootstrap_file."
            )


def _emqx_tls(view: View) -> Iterator[str]:
    url = view.settings.emqx.url
    if view.changed("emqx", "tls") and (url is None or not url.lower().startswith("https://")):
        yield (
            f"{view.say('emqx', 'tls')} is given, but {view.say('emqx', 'url')} is no https:// address: nothing would "
            "be encrypted; write https:// (EMQX's HTTPS listener, usually port 18084), or remove the table."
        )
    yield from tls_files(view, "emqx")


def _emqx_times(view: View) -> Iterator[str]:
    emqx = view.settings.emqx
    if emqx.timeout > emqx.interval:
        yield (
            f"{view.say('emqx', 'timeout')} is longer than {view.say('emqx', 'interval')}: the next question would be "
            "due before the last is given up; lower the first or raise the second."
        )


def _canary_topic(view: View) -> Iterator[str]:
    canary = view.settings.canary
    if not canary.enabled:
        return
    say = view.say("canary", "topic")
    if (wrong := wrong_placeholder(canary.topic, ("instance",))) is not None:
        yield f"{say}: {wrong}."
        return
    topic = _topic(view)
    if any(character in topic for character in "+#\x00"):
        yield f'{say} holds "+", "#" or NUL: messages are published to one topic, without wildcards.'
    elif topic.startswith("$"):
        yield f'{say} starts with "$": such topics are the broker\'s own; choose another.'
    elif filter_covers(_STATUS_FILTER, topic):
        yield f"{say} is below gateways/, where the gateways' own status is: no route takes that; choose another."
    elif _taker(view, topic) is None:
        yield (
            f"{view.say('canary', 'enabled')}, but no route takes {topic!r} ({say}): its messages would reach nobody; "
            f'add a route, such as [[routes]] with name = "canary", filters = ["{topic}"] and '
            'topic = "gateway-canary", or turn the canary off.'
        )


def _canary_name(view: View) -> Iterator[str]:
    mqtt, instance = view.settings.mqtt, view.settings.instance
    if view.settings.canary.enabled and mqtt.client_id.replace("${instance}", instance) == f"{instance}-canary":
        yield (
            f"{view.say('mqtt', 'client_id')} is the client id of the canary ({view.say('canary', 'enabled')}): the "
            "broker would end one's connection for the other's; choose another."
        )


def _topic(view: View) -> str:
    return view.settings.canary.topic.replace("${instance}", view.settings.instance)


def _taker(view: View, topic: str) -> int | None:
    """The number of the route that takes the topic: the first that matches."""
    for number, route in enumerate(view.settings.routes):
        if any(filter_covers(text, topic) for text in route.filters):
            return number
    return None


REFUSED = (
    Rule(("emqx.url", "emqx.api_key", "emqx.api_secret"), _emqx_login),
    Rule(("emqx.url", "emqx.tls"), _emqx_tls),
    Rule(("emqx.timeout", "emqx.interval"), _emqx_times),
    Rule(("canary", "routes", "instance"), _canary_topic),
    Rule(("canary.enabled", "mqtt.client_id", "instance"), _canary_name),
)


def _emqx_readable(view: View) -> Iterator[str]:
    emqx = view.settings.emqx
    if emqx.url is not None and emqx.api_secret is not None and is_readable_on_the_way(emqx.url):
        yield (
            f"{view.say('emqx', 'api_secret')} is sent readable to everybody on the way to {view.say('emqx', 'url')}; "
            "use https://, or a key of the role viewer in a closed network."
        )


def _emqx_unverified(view: View) -> Iterator[str]:
    if not view.settings.emqx.tls.verify:
        yield unverified(view, "emqx")


def _canary_shares(view: View) -> Iterator[str]:
    """Its messages among others: their readers meet them, and to find them again all others are read."""
    settings = view.settings
    if not settings.canary.enabled or (number := _taker(view, _topic(view))) is None:
        return
    route = settings.routes[number]
    if "${" in route.topic:
        return  # which topics it makes is not known here
    own = _own_filters(view)
    others = [other.name for other in settings.routes if other.topic == route.topic and set(other.filters) - own]
    if others:
        yield (
            f'route "{route.name}" ({view.origin("routes")}) takes the canary\'s messages '
            f"({view.say('canary', 'topic')}) to Kafka topic {route.topic}, where the messages of "
            f"{', '.join(others)} go too: readers of that topic meet the canary's, and worker 0 reads the whole topic "
            "back to find them; give the canary a route before that one, to a topic of its own."
        )


def _own_filters(view: View) -> set[str]:
    """Filters that bring canaries alone, this gateway's or all gateways'."""
    text = view.settings.canary.topic
    before, found, after = text.rpartition("${instance}")
    everyone = {f"{before}#"} if found and not after and before.endswith("/") else set()
    return {_topic(view), text.replace("${instance}", "+"), *everyone}


WARNED = (
    Rule(("emqx.url", "emqx.api_secret"), _emqx_readable),
    Rule(("emqx.tls",), _emqx_unverified),
    Rule(("canary", "routes", "instance"), _canary_shares),
)
