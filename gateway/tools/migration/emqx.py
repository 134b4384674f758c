"""EMQX's rules, Kafka actions and connectors, as its REST API shows them, turned into settings of this gateway.

The shapes are those of EMQX 5.8: ``GET /api/v5/rules``, ``/actions``, ``/connectors``; also bridges of 5.0 to 5.3,
which are action and connector in one (``/bridges``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, Final

from bridge.routing.filters import split_share
from config.values.topic_filters import covers, intersection
from gateway.tools.migration.emqx_action import put_action
from gateway.tools.migration.emqx_connector import put_connector
from gateway.tools.migration.emqx_sql import SqlError, Statement, parse_sql
from gateway.tools.migration.emqx_words import Words, WordsError
from gateway.tools.migration.findings import Imported, ImportError_
from gateway.tools.migration.routes import arranged, usable

_KAFKA: Final = ("kafka_producer", "kafka")
_ALIKE: Final = ("azure_event_hub_producer", "confluent_producer")  # the same fields, other names
_COMMENT: Final = "#"  # key for a route's comment until its place is known


@dataclass(slots=True)
class EmqxSource:
    """The contents of the files, by name."""

    rules: list[dict[str, Any]] = field(default_factory=list)
    actions: dict[str, dict[str, Any]] = field(default_factory=dict)
    connectors: dict[str, dict[str, Any]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    elsewhere: set[str] = field(default_factory=set)
    """Actions that write to another Kafka than the first connector's."""


def read_emqx(documents: list[Any]) -> EmqxSource:
    """Find rules, actions and connectors. A document is one of them, a list, an answer with ``data``, or a table of
    such lists. Raises ImportError_ if none is for Kafka."""
    source = EmqxSource()
    _require_whole(documents)
    for document in documents:
        _sort(document, source)
    if not source.actions:
        found = f" There are: {', '.join(source.others)}." if source.others else ""
        raise ImportError_(
            "There is no Kafka action (type kafka_producer) in these files. Give what GET /api/v5/rules, "
            f"/api/v5/actions and /api/v5/connectors answer, as JSON.{found}"
        )
    return source


def _require_whole(documents: list[Any]) -> None:
    """Raise ImportError_ where pages are missing: EMQX gives rules by a hundred."""
    answers = [one for one in documents if isinstance(one, dict) and isinstance(one.get("meta"), dict)]
    count = max((int(one["meta"].get("count", 0)) for one in answers), default=0)
    there = sum(len(one["data"]) for one in answers)
    if there < count:
        raise ImportError_(
            f"EMQX has {count} entries, and these files {there} of them: it answers by pages. Ask for all with "
            "?limit=10000, or give every page."
        )


def _sort(document: Any, source: EmqxSource) -> None:
    """Add a rule, action, connector or another thing to its list in ``source``; of a list or table, each in it."""
    if isinstance(document, list):
        for one in document:
            _sort(one, source)
        return
    if not isinstance(document, dict):
        return
    kind = document.get("type")
    if "sql" in document:
        source.rules.append(document)
    elif isinstance(kind, str) and kind in (*_KAFKA, *_ALIKE):
        _sort_kafka(document, kind, source)
    elif isinstance(kind, str) and "name" in document:
        source.others.append(f"{kind}:{document['name']}")
    else:  # {"data": […]}, {"rules": […], "actions": […]}, or tables by name
        for value in document.values():
            if isinstance(value, list | dict):
                _sort(value, source)


def _sort_kafka(document: dict[str, Any], kind: str, source: EmqxSource) -> None:
    """Add an action or a connector; a bridge of 5.0 to 5.3 is both."""
    name = str(document.get("name", kind))
    parameters = document.get("parameters", document.get("kafka"))
    if parameters is None and isinstance(document.get("producer"), dict):  # before 5.0.2
        parameters = document["producer"].get("kafka")
    if isinstance(parameters, dict):
        source.actions[f"{kind}:{name}"] = {**document, "parameters": parameters, "type": kind, "name": name}
    if "bootstrap_hosts" in document:
        source.connectors[f"{kind}:{name}"] = document


def import_emqx(source: EmqxSource, *, mqtt: str | None, device: str | None) -> Imported:
    """The settings for all of EMQX's writing to Kafka. ``mqtt`` is EMQX's address for the gateway. ``device`` is a
    template of the device's name, because a subscriber does not get the client id."""
    imported = Imported()
    imported.put("mqtt.addresses", [mqtt or "mqtt://127.0.0.1:1883"])
    if mqtt is None:
        imported.note(
            "check",
            "mqtt.addresses",
            "An action runs within EMQX and knows no address of it; 127.0.0.1:1883 stands in its place.",
            "Give EMQX's address (--mqtt), and a user that may subscribe: mqtt.username, mqtt.password_file.",
        )
    _put_connectors(imported, source)
    elsewhere = [name for name, action in source.actions.items() if _connector(action) in _others(source)]
    for name in elsewhere:
        del source.actions[name]
    source.elsewhere.update(elsewhere)
    routes: list[dict[str, Any]] = []
    used: set[str] = set()
    for rule in source.rules:
        routes += _rule_routes(imported, rule, source, used, device)
    for name, action in source.actions.items():
        if name not in used:
            routes += _direct_route(imported, action, device)
    if not routes:
        imported.note("lost", "routes", "None came of it: no enabled rule leads to a Kafka action.", "See above.")
    routes = arranged(imported, _named_apart(routes))
    imported.settings["routes"] = routes
    for number, route in enumerate(routes):
        for text in route.pop(_COMMENT, []):
            imported.comment(f"routes.{number}", text)
    _overlaps(imported, routes)
    for other in source.others:
        imported.note("note", other, "It has nothing to do with Kafka and stays in EMQX.")
    return imported


def _connector(action: dict[str, Any]) -> str:
    return f"{action['type']}:{action.get('connector', action['name'])}"


def _others(source: EmqxSource) -> list[str]:
    """Used connectors to another Kafka than the first one's: a gateway writes to one."""
    wanted = {_connector(action) for action in source.actions.values()}
    there = [name for name in source.connectors if name in wanted]
    hosts = {name: source.connectors[name]["bootstrap_hosts"] for name in there}
    return [name for name in there[1:] if hosts[name] != hosts[there[0]]]


def _put_connectors(imported: Imported, source: EmqxSource) -> None:
    wanted = {_connector(action) for action in source.actions.values()}
    there = [name for name in source.connectors if name in wanted]
    where = f"to that of connector {there[0]}" if there else "to 127.0.0.1:9092, which is the default"
    for name in sorted(wanted - set(there)):
        imported.note(
            "check",
            f"connector {name}",
            f"It is in none of the files, so its Kafka is not known: what uses it writes {where}.",
            "Give what GET /api/v5/connectors answers as well.",
        )
    if there:
        put_connector(imported, source.connectors[there[0]])
    for name in (one for one in there[1:] if one not in _others(source)):
        if source.connectors[name].get("authentication") != source.connectors[there[0]].get("authentication"):
            imported.note(
                "lost",
                f"connector {name}: authentication",
                f"A gateway has one login to Kafka, which is that of connector {there[0]}.",
                "Give that user the right to this connector's topics, or import it for a second gateway.",
            )
    for name in _others(source):
        imported.note(
            "lost",
            f"connector {name}",
            f"A gateway writes to one Kafka, that of connector {there[0]}: no route was made for this one's actions.",
            "Import it for a second gateway: another instance, and another mqtt.share_group, so that both get all.",
        )


# --- rules


def _rule_routes(
    imported: Imported, rule: dict[str, Any], source: EmqxSource, used: set[str], device: str | None
) -> list[dict[str, Any]]:
    name = str(rule.get("id") or rule.get("name") or "rule")
    where = f"rule {name}"
    actions = [one for one in rule.get("actions", []) if isinstance(one, str) and one not in source.elsewhere]
    ours = [one for one in actions if one in source.actions]
    used.update(ours)
    for other in actions:
        if other not in ours:
            kind = other.partition(":")[0]
            missing = " and is in none of the files" if kind in (*_KAFKA, *_ALIKE) else ""
            imported.note("lost", f"{where}, action {other}", f"It is no Kafka action{missing}: leave it in EMQX.")
    if any(isinstance(one, dict) for one in rule.get("actions", [])):
        imported.note("note", f"{where}, built-in functions", "console and republish stay in EMQX.")
    if not ours:
        return []
    if rule.get("enable") is False:
        imported.note("note", where, "It is disabled, so no route was made of it.")
        return []
    try:
        statement = parse_sql(str(rule["sql"]))
    except SqlError as error:
        imported.note(
            "lost", f"{where}: {error.snippet}", f"{error.reason}: no route was made of it.", "Write it by hand."
        )
        return []
    filters = _filters(imported, where, statement)
    if not filters:
        return []
    routes = []
    for one in ours:
        action = source.actions[one]
        if action.get("enable") is False:
            imported.note("note", one, "It is disabled, so no route was made of it.")
            continue
        words = Words(statement.selected, device)
        route = {"name": _route_name(name if len(ours) == 1 else f"{name}-{action['name']}"), "filters": filters}
        put_action(imported, route, action, words, statement, device)
        _put_condition(imported, where, route, statement, words)
        routes.append(route)
    if len(routes) > 1:
        imported.note(
            "lost",
            f"{where}: {len(routes)} Kafka actions",
            "A message takes one route, so only the first of them would get it.",
            "Let a second gateway, with a mqtt.share_group of its own, feed the other topics.",
        )
    return routes


def _filters(imported: Imported, where: str, statement: Statement) -> list[str]:
    """A route's filters by FROM, with a finding for what cannot be one."""
    filters = []
    for topic in statement.topics:
        if topic.startswith(("$events/", "$bridges/", "$sources/")):
            way = ""
            if "client/connected" in topic or "client_connected" in topic or "disconnected" in topic:
                way = "Subscribe a route to $SYS/brokers/+/clients/# instead: connects and disconnects as JSON."
            imported.note(
                "lost", f'{where}: FROM "{topic}"', "Events of EMQX are no messages that one can subscribe to.", way
            )
            continue
        group, text = split_share(topic)
        if not usable(imported, f'{where}: FROM "{topic}"', text):
            continue
        if group is not None:
            imported.note("differs", f'{where}: FROM "{topic}"', "mqtt.share_group names the group here.")
        filters.append(text)
    return list(dict.fromkeys(filters))


def _put_condition(imported: Imported, where: str, route: dict[str, Any], statement: Statement, words: Words) -> None:
    """Add WHERE as a filter interceptor. Without a counterpart all messages pass, and a finding reports it."""
    if not statement.where_text:
        return
    try:
        expression = _expression(statement, words)
    except WordsError as error:
        route[_COMMENT] = [f"NOT FILTERED, all messages come through: WHERE {statement.where_text}"]
        imported.note(
            "lost",
            f"{where}: WHERE {statement.where_text}",
            f"NOT FILTERED: {error.what} ({error.why}), so all messages of the filters come through.",
            "Write an expression of the filter interceptor, or an interceptor of your own (docs/interceptors.md).",
        )
        return
    route["interceptors"] = [{"use": "filter", "expression": expression, "on_error": "drop", "reason": "rule"}]
    imported.note(
        "differs",
        f"{where}: WHERE {statement.where_text}",
        f"It became: {expression}. EMQX compares text with numbers by reading the text as one; here '5' is not 5, and "
        "what cannot be compared, or is no JSON, is dropped (on_error), as EMQX drops it.",
    )


def _expression(statement: Statement, words: Words) -> str:
    if statement.where is None:
        assert statement.refused is not None
        raise WordsError(statement.refused.snippet, statement.refused.reason)
    return words.expression(statement.where)


def _direct_route(imported: Imported, action: dict[str, Any], device: str | None) -> list[dict[str, Any]]:
    """An action with a topic of its own, without a rule."""
    name = f"{action['type']}:{action['name']}"
    topic = action.get("local_topic")
    if not topic:
        imported.note("note", name, "No rule leads to it, so no route was made of it.")
        return []
    if action.get("enable") is False:
        imported.note("note", name, "It is disabled, so no route was made of it.")
        return []
    if not usable(imported, f"{name}: local_topic", str(topic)):
        return []
    statement = parse_sql('SELECT * FROM "local"')  # the action gets the whole message
    route: dict[str, Any] = {"name": _route_name(str(action["name"])), "filters": [str(topic)]}
    put_action(imported, route, action, Words((), device), statement, device)
    return [route]


def _route_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")[:64] or "route"


def _named_apart(routes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names: set[str] = set()
    for route in routes:
        name, number = route["name"], 2
        while route["name"] in names:
            route["name"] = f"{name[:60]}-{number}"
            number += 1
        names.add(route["name"])
    return routes


def _overlaps(imported: Imported, routes: list[dict[str, Any]]) -> None:
    """Report overlapping routes: in EMQX every matching rule gets a message, here only the first route."""
    for first, second in combinations(routes, 2):
        for one, other in product(first["filters"], second["filters"]):
            if covers(one, other):
                shared = f"everything that {other} matches"
            elif intersection(one, other) is not None:
                shared = f"what both {one} and {other} match"
            else:
                continue
            imported.note(
                "lost",
                f"routes {first['name']} and {second['name']}",
                f"EMQX sent {shared} both ways; here a message takes the first route that matches.",
                "Feed the second topic by a gateway of its own (another mqtt.share_group), or from the first.",
            )
