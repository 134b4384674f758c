"""Relations between the settings of those who operate the gateway: EMQX's REST API, the canary."""

from collections.abc import Iterator

from config.relations.client_tls import tls_files, unverified
from config.relations.mqtt import one_topic
from config.relations.rules import Rule, changed, when
from config.settings import Settings
from config.tables.routes import RouteSettings
from config.values.addresses import is_readable_on_the_way
from config.values.topic_filters import covers

_STATUS_FILTER = "gateways/#"


def _emqx_login(settings: Settings) -> Iterator[str]:
    """Refuses EMQX's address without both parts of its key, and either part without the address."""
    emqx = settings.emqx
    for name in ("api_key", "api_secret"):
        given = getattr(emqx, name) is not None
        if given and emqx.url is None:
            yield (
                f"<emqx.{name}> is given without emqx.url: no EMQX would be asked; give the address of EMQX's REST "
                'API, as in "http://emqx.example:18083", or remove it.'
            )
        elif not given and emqx.url is not None:
            yield (
                f"<emqx.url> is given without emqx.{name}: EMQX needs a key; create one in its dashboard (System, API "
                "Key) or in its api_key.bootstrap_file."
            )


def _canary_topic(settings: Settings) -> Iterator[str]:
    """Refuses a canary's topic that is invalid, or that no route takes."""
    if not settings.canary.enabled:
        return
    wrong = list(one_topic(settings, "canary.topic"))
    topic = _topic(settings)
    if wrong:
        yield from wrong
    elif covers(_STATUS_FILTER, topic):
        yield "<canary.topic> is below gateways/, where the gateways' status is: no route takes that; choose another."
    elif _taker(settings) is None:
        yield (
            f"<canary.enabled>, but no route takes {topic!r} (<canary.topic>): its messages would be lost; add a "
            f'route, such as [[routes]] with name = "canary", filters = ["{topic}"] and topic = "gateway-canary", or '
            "turn the canary off."
        )


def _topic(settings: Settings) -> str:
    return settings.canary.topic.replace("${instance}", settings.instance)


def _taker(settings: Settings) -> RouteSettings | None:
    """The route of the canary's messages: the first that matches."""
    topic = _topic(settings)
    return next((one for one in settings.routes if any(covers(text, topic) for text in one.filters)), None)


REFUSED = (
    Rule(("emqx.url", "emqx.api_key", "emqx.api_secret"), _emqx_login),
    when(
        lambda s: changed(s, "emqx.tls") and not (s.emqx.url or "").lower().startswith("https://"),
        "<emqx.tls> is given, but <emqx.url> is no https:// address: nothing would be encrypted; write https:// "
        "(EMQX's HTTPS listener, usually port 18084), or remove the table.",
    ),
    Rule(("emqx.tls",), lambda s: tls_files(s, "emqx.tls")),
    when(
        lambda s: s.emqx.timeout > s.emqx.interval,
        "<emqx.timeout> is longer than <emqx.interval>: the next question would be due before the last one ends; "
        "lower the first or raise the second.",
    ),
    Rule(("canary", "routes", "instance"), _canary_topic),
    when(
        lambda s: s.canary.enabled and s.mqtt.client_id.replace("${instance}", s.instance) == f"{s.instance}-canary",
        "<mqtt.client_id> is the client id of the canary (<canary.enabled>): the broker would end one's connection for "
        "the other's; choose another.",
        "instance",
    ),
)


def _canary_shares(settings: Settings) -> Iterator[str]:
    """Warns of a route of the canary that other messages take too: readers receive the canary's messages, and worker 0
    reads all others."""
    if not settings.canary.enabled or (route := _taker(settings)) is None or "${" in route.topic:
        return  # the topics of a template are unknown here
    own = _own_filters(settings)
    others = [other.name for other in settings.routes if other.topic == route.topic and set(other.filters) - own]
    if others:
        yield (
            f'route "{route.name}" takes the canary\'s messages (<canary.topic>) to Kafka topic {route.topic}, where '
            f"the messages of {', '.join(others)} go too: readers of that topic meet the canary's, and worker 0 reads "
            "the whole topic back to find them; give the canary a route before that one, to a topic of its own."
        )


def _own_filters(settings: Settings) -> set[str]:
    """Filters for canary messages only, this gateway's or all gateways'."""
    text = settings.canary.topic
    before, found, after = text.rpartition("${instance}")
    everyone = {f"{before}#"} if found and not after and before.endswith("/") else set()
    return {_topic(settings), text.replace("${instance}", "+"), *everyone}


WARNED = (
    when(
        lambda s: s.emqx.url is not None and s.emqx.api_secret is not None and is_readable_on_the_way(s.emqx.url),
        "<emqx.api_secret> is sent readable over the network to <emqx.url>; use https://, or a key of the role viewer "
        "in a closed network.",
    ),
    unverified("emqx"),
    Rule(("canary", "routes", "instance"), _canary_shares),
)
