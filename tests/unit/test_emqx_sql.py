"""EMQX's SQL: what is understood means the same as in EMQX, and everything else is refused as it stands."""

import json

import pytest

from bridge.errors import BridgeError
from bridge.intercept.expression import Expression
from bridge.message import MessageView, Properties
from bridge.record import Record
from gateway.tools.migration.emqx_sql import SqlError, parse_sql
from gateway.tools.migration.emqx_words import Words, WordsError


def passes(sql: str, payload: object, topic: str = "a/b", properties: Properties | None = None, qos: int = 1) -> bool:
    """Whether a message comes through the WHERE, by the expression that it became; what fails is dropped."""
    statement = parse_sql(sql)
    assert statement.refused is None, statement.refused
    assert statement.where is not None
    expression = Expression(Words(statement.selected, None).expression(statement.where))
    value = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    message = MessageView(topic, qos << 1, properties or Properties(), value, 1_700_000_000_000)
    try:
        return bool(expression.evaluate(Record(message, "t", None, value, (), 1)))
    except (BridgeError, TypeError):
        return False


@pytest.mark.parametrize(("where", "payload", "expected"), [
    ("payload.x = 1", {"x": 1}, True),
    ("payload.x = 1", {"x": 2}, False),
    ("payload.x = 1", {}, False),
    ("payload.x != 1", {"x": None}, True),
    ("payload.x != 1", {}, False),  # in EMQX what is not there compares as false, whatever the operator
    ("not payload.x != 1", {}, True),
    ("payload.x != payload.y", {"x": 1}, False),
    ("pub_props.'User-Property'.none != 'north'", {}, False),
    ("pub_props.'User-Property'.site != 'south'", {}, True),
    ("pub_props.'Content-Type' != 'text/plain'", {}, False),
    ("topic != 'b' and qos != 0", {}, True),
    ("payload.x <> 1", {"x": 1}, False),
    ("payload.x > 5", {"x": 6}, True),
    ("payload.x > 5", {}, False),
    ("not payload.x > 5", {}, True),
    ("payload.x >= 5.5", {"x": 5.5}, True),
    ("5 < payload.x", {"x": 6}, True),
    ("payload.x > -1.5e1", {"x": -10}, True),
    ("payload.a.b = 'it''s'", {"a": {"b": "it's"}}, True),
    ("payload.a[1].b = 'x'", {"a": [{"b": "x"}]}, True),  # EMQX counts from 1
    ("payload.x = 1 or payload.y = 1 and payload.z = 1", {"x": 1}, True),  # AND binds closer
    ("(payload.x = 1 or payload.y = 1) and payload.z = 1", {"x": 1}, False),
    ("NOT (payload.x = 1 OR payload.x = 2)", {"x": 3}, True),
    ("payload.on", {"on": True}, True),
    ("payload.on", {"on": 1}, False),
    ("not payload.on", {"on": False}, True),
    ("not payload.on", {}, False),  # NOT takes booleans alone
    ("payload.on = false", {"on": False}, True),
    ("payload.on = false", {"on": 0}, False),  # in EMQX neither is the other, as in Python
    ("payload.on != true", {"on": 1}, True),
    ("payload.x = 1", {"x": True}, False),
    ("not payload.x = 1", {"x": True}, True),
    ("0 != payload.x", {"x": False}, True),
    ("payload.x = 1 -- why\n", {"x": 1}, True),
    ("payload.x = 1", b"no json", False),
    ("payload.x > 5", {"x": "text"}, False),
    ("qos = 1 and topic = 'a/b'", {}, True),
    ("topic =~ 'a/+'", {}, True),
    ("topic =~ 'b/#'", {}, False),
    ("pub_props.'User-Property'.site = 'north'", {}, True),
    ("pub_props.'User-Property'.none = 'north'", {}, False),
    ("retain = false and timestamp > 1600000000000", {}, True),
])  # fmt: skip
def test_a_condition_lets_through_what_emqx_does(where: str, payload: object, expected: bool) -> None:
    properties = Properties(user=(("site", "north"),))
    assert passes(f'SELECT * FROM "a/b" WHERE {where}', payload, properties=properties) is expected


def test_an_alias_stands_for_its_field() -> None:
    sql = "SELECT payload.temp as t, json_decode(payload) as p FROM \"a/b\" WHERE t > 1 and p.unit = 'C' "
    assert passes(sql, {"temp": 2, "unit": "C"})
    assert not passes(sql, {"temp": 2, "unit": "F"})


def test_a_name_that_the_rule_gives_anew_hides_the_field_of_the_message() -> None:
    """EMQX looks into what is selected before it looks into the message."""
    assert passes('SELECT payload.in as payload FROM "a/b" WHERE payload.x = 1', {"in": {"x": 1}, "x": 2})
    assert passes('SELECT payload.y as payload.x FROM "a/b" WHERE payload.x = 1', {"y": 1, "x": 2})
    assert passes('SELECT payload.a as a, a.b as c FROM "a/b" WHERE c = 1', {"a": {"b": 1}})
    for sql in (
        'SELECT base64_decode(payload) as payload FROM "t" WHERE payload.x = 1',
        'SELECT base64_decode(payload) as payload, json_decode(payload) as p FROM "t" WHERE p.x = 1',
        "SELECT nth(1, tokens(topic, '/')) as topic FROM \"t\" WHERE topic = 'a'",
        'SELECT upper(payload.x) as payload.x FROM "t" WHERE payload.x = 1',
    ):
        statement = parse_sql(sql)
        assert statement.where is not None
        with pytest.raises(WordsError, match="it is computed"):
            Words(statement.selected, None).expression(statement.where)
    # A field without AS keeps its place: EMQX has no ${id} then, and ${topic} is the message's.
    words = Words(parse_sql('SELECT topic, payload.topic, payload.id FROM "t"').selected, None)
    assert words.template("${topic}/${payload.topic}") == "${topic}/${payload.topic}"
    with pytest.raises(WordsError):
        words.template("${id}")


@pytest.mark.parametrize(("where", "snippet"), [
    ("upper(payload.x) = 'A'", "upper(payload.x) = 'A'"),
    ("payload.x + 1 > 2", "payload.x + 1 > 2"),
    ("payload.x = 1 and is_null(payload.y)", "is_null(payload.y)"),
    ("payload.x > 1 + 1", "payload.x > 1 + 1"),
    ("payload.a[-1] = 1", "-1] = 1"),
    ("case when true then true end", "case when true then true end"),
    ("payload.x = 1 payload.y", "payload.y"),
    ("payload.x in (1, 2)", "in (1, 2)"),
    ("(payload.x = 1", "(the end)"),
    ("1", "1"),
    ("(" * 60 + "payload.x" + ")" * 60, "("),
])  # fmt: skip
def test_what_is_not_understood_is_refused_as_it_stands(where: str, snippet: str) -> None:
    statement = parse_sql(f'SELECT * FROM "t" WHERE {where}')
    assert statement.where is None
    assert statement.refused.snippet.startswith(snippet)
    assert statement.topics == ("t",)


@pytest.mark.parametrize("where", ["clientid = 'a'", "username = 'a'", "payload = 'a'", "client_attrs.x = 1", "up = 1"])
def test_what_a_subscriber_is_not_told_has_no_word(where: str) -> None:
    statement = parse_sql(f'SELECT upper(payload.x) as up FROM "t" WHERE {where}')
    assert statement.where is not None
    with pytest.raises(WordsError):
        Words(statement.selected, None).expression(statement.where)


@pytest.mark.parametrize(
    "sql", ["", 'FOREACH payload.x FROM "t"', "SELECT * WHERE x = 1", "SELECT * FROM t", "SELECT ~"]
)
def test_no_statement(sql: str) -> None:
    with pytest.raises(SqlError):
        parse_sql(sql)


def test_selected_fields_and_topics() -> None:
    statement = parse_sql('select *, payload.a.b as c, clientid, now_timestamp() as n, 1 + 1 FROM "t/#", "u/+" ;')
    assert statement.topics == ("t/#", "u/+")
    assert statement.everything
    assert [(one.name, one.field.path if one.field else None) for one in statement.selected] == [
        ("*", None),
        ("c", ("payload", "a", "b")),
        ("clientid", ("clientid",)),
        ("n", None),
        ("", None),
    ]
    assert statement.selected[3].text == "now_timestamp() as n"


@pytest.mark.parametrize(("theirs", "ours"), [
    ("${topic}", "${topic}"), ("${.payload.a.b}", "${payload.a.b}"), ("x-${payload.id}-$y", "x-${payload.id}-${$}y"),
    ("${pub_props.User-Property.site}", "${property.site}"), ("${t}", "${payload.temp}"),
    ("${clientid}", "${device}"), ("", ""),
])  # fmt: skip
def test_templates(theirs: str, ours: str) -> None:
    words = Words(parse_sql('SELECT payload.temp as t FROM "x"').selected, "${topic[1]}")
    assert words.template(theirs) == ours


@pytest.mark.parametrize("text", ["${.}", "${username}", "${clientid}", "${payload}", "${nothing}"])
def test_templates_without_a_counterpart(text: str) -> None:
    with pytest.raises(WordsError):
        Words((), None).template(text)
