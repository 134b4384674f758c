"""Conditions and templates of EMQX in the words of this gateway: expressions of ``filter``, templates of a route."""

import re
from collections.abc import Iterable
from typing import Final

from bridge.routing.filters import FilterError, validate_filter
from gateway.tools.migration.emqx_sql import Comparison, Condition, Constant, Field, Junction, Negation, Selected

UNKNOWN: Final = {
    "clientid": "the publisher's client id",
    "username": "the publisher's user name",
    "peerhost": "the publisher's address",
    "peername": "the publisher's address",
    "client_attrs": "attributes of the publisher",
    "id": "EMQX's own id of the message",
    "node": "the EMQX node",
    "publish_received_at": "when EMQX received it",
}
"""Fields that a subscriber is never told, and what they are."""
_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")
_NAME: Final = re.compile(r"[^.*${}\[\]]+")
_USER: Final = ("User-Property", "User-Property-Pairs")
_DECODED: Final = re.compile(r"json_decode\(\s*payload\s*\)\s+as\s+\S+", re.IGNORECASE)

_Path = tuple[str | int, ...]


class WordsError(ValueError):
    """Something that has no word here. ``what`` it is, ``why`` not."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why


class Words:
    """The words of one rule: what its SELECT calls a field stands for that field. ``device`` is the template that says
    which device a message is from, if the caller knows one: it takes the client id's place."""

    def __init__(self, selected: Iterable[Selected], device: str | None) -> None:
        self._device = device  # a template of its name, or None
        self._aliases: dict[_Path, _Path] = {}
        self._computed: dict[_Path, str] = {}
        for one in selected:
            name = tuple(one.name.split("."))
            # json_decode(payload) AS name: another name of the payload.
            field = Field(("payload",), one.text) if _DECODED.fullmatch(one.text) else one.field
            try:
                if field is not None:
                    self._aliases[name] = self._resolved(field)
                    continue
            except WordsError:
                pass  # a field of something computed
            self._computed[name] = one.text

    # --- conditions

    def expression(self, condition: Condition) -> str:
        """A condition of EMQX's SQL as an expression of the ``filter`` interceptor. Raises WordsError."""
        match condition:
            case Junction(word, parts):
                return f" {word} ".join(self._bracketed(part) for part in parts)
            case Negation(Field() as field):
                return f"{self._value(field)} is False"  # in EMQX, what is no boolean is not even not true
            case Negation(inside):
                return f"not {self._bracketed(inside)}"
            case Field():
                return f"{self._value(condition)} is True"
            case Comparison("=~", left, right):
                return self._topic_matches(left, right)
            case Comparison(operator, left, right):
                return self._compared(operator, left, right)

    def _bracketed(self, condition: Condition) -> str:
        text = self.expression(condition)
        return f"({text})" if isinstance(condition, Junction) or " and " in text else text

    def _compared(self, operator: str, left: Field | Constant, right: Field | Constant) -> str:
        """A comparison that means in Python what it means in EMQX."""
        text = f"{self._value(left)} {'==' if operator == '=' else operator} {self._value(right)}"
        for one, other in ((left, right), (right, left)) if operator in {"=", "!="} else ():
            if self._json_path(one) is not None and isinstance(other, Constant) and other.value in (0, 1):
                # true is 1 in Python, and no number in EMQX
                of, truth = self._value(one), bool(other.value)
                if isinstance(other.value, bool):
                    text = f"{of} is {truth}" if operator == "=" else f"{of} is not {truth}"
                else:
                    text = f"{text} and {of} is not {truth}" if operator == "=" else f"({text} or {of} is {truth})"
        if operator == "=":
            return text
        # What is not there is neither more nor less than anything, and in EMQX not different from it either.
        return " and ".join([*filter(None, map(self._guard, (left, right))), text])

    def _guard(self, operand: Field | Constant) -> str:
        """Whether the message has it, as an expression; empty for what each message has."""
        if isinstance(operand, Constant):
            return ""
        if (path := self._json_path(operand)) is not None:
            return f"has(json, {path!r})"
        match self._resolved(operand):
            case ("pub_props", user, str(name)) if user in _USER:
                return f"has(properties, {_dotted((name,), operand.text)!r})"
            case ("pub_props", *_):
                return f"{self._value(operand)} != ''"
        return ""

    def _topic_matches(self, left: Field | Constant, right: Field | Constant) -> str:
        if not (isinstance(left, Field) and self._resolved(left) == ("topic",) and isinstance(right, Constant)):
            raise WordsError("=~", "here it compares the topic with a filter alone")
        try:
            validate_filter(str(right.value))
        except FilterError as error:
            raise WordsError(str(right.value), str(error)) from None
        return f"topic_matches(topic, {str(right.value)!r})"

    def _value(self, operand: Field | Constant) -> str:
        """An operand in an expression of the ``filter`` interceptor. Raises WordsError."""
        if isinstance(operand, Constant):
            return repr(operand.value)
        if (path := self._json_path(operand)) is not None:
            return f"get(json, {path!r})"
        match self._resolved(operand):
            case ("topic",):
                return "topic"
            case ("qos",):
                return "qos"
            case ("retain",) | ("flags", "retain"):
                return "retain"
            case ("timestamp",):
                return "received_ms"
            case ("pub_props", user, str(name)) if user in _USER:
                return f"get(properties, {_dotted((name,), operand.text)!r}, '')"
            case ("pub_props", "Content-Type"):
                return "content_type"
            case ("pub_props", "Response-Topic"):
                return "response_topic"
            case (str(first), *_):
                raise WordsError(operand.text, _why_not(first))
        raise WordsError(operand.text, "it is no field of a message")

    def _json_path(self, operand: Field | Constant) -> str | None:
        """The path in the payload with dots; None for what is no part of it."""
        if isinstance(operand, Constant):
            return None
        path = self._resolved(operand)
        if path[0] != "payload" or len(path) == 1:
            return None
        return _dotted(path[1:], operand.text)

    def _resolved(self, field: Field) -> _Path:
        """The path of a field, with an alias at its beginning replaced by what it stands for. Raises WordsError for a
        computed one."""
        for length in range(len(field.path), 0, -1):
            name = field.path[:length]
            if name in self._computed:
                raise WordsError(field.text, f"it is computed: {self._computed[name]}")
            if name in self._aliases:
                return (*self._aliases[name], *field.path[length:])
        return field.path

    # --- templates

    def template(self, text: str) -> str:
        """A template of ours for one of EMQX's: ``${.payload.id}`` becomes ``${payload.id}``. Raises WordsError."""
        parts = []
        at = 0
        for found in _PLACEHOLDER.finditer(text):
            parts += [_literal(text[at : found.start()]), self._placeholder(found[0], found[1])]
            at = found.end()
        return "".join([*parts, _literal(text[at:])])

    def _placeholder(self, text: str, inside: str) -> str:
        """Our placeholder for EMQX's ``text``, which has ``inside`` between its braces. Raises WordsError."""
        names = [name for name in inside.strip().removeprefix(".").split(".") if name]
        if not names:
            raise WordsError(text, "everything that the rule selected, as one JSON object")
        match self._resolved(Field(tuple(names), text)):
            case ("topic",):
                return "${topic}"
            case ("qos",):
                return "${qos}"
            case ("payload", _, *_) as path:
                return f"${{payload.{_dotted(path[1:], text)}}}"
            case ("pub_props", user, str(name)) if user in _USER:
                return f"${{property.{name}}}"
            case ("pub_props", "Content-Type"):
                return "${content_type}"
            case ("pub_props", "Response-Topic"):
                return "${response_topic}"
            case ("pub_props", "Correlation-Data"):
                return "${correlation_data}"
            case ("clientid",) if self._device is not None:
                return "${device}"
            case (str(first), *_):
                raise WordsError(text, _why_not(first))
        raise WordsError(text, "it is no field of a message")


def _why_not(name: str) -> str:
    if name in UNKNOWN:
        return f"{UNKNOWN[name]}, which a subscriber is not told"
    if name == "payload":
        return "the payload as a whole is compared by no expression here"
    return "there is no such field here"


def _dotted(path: _Path, text: str) -> str:
    """A path as our settings have it. ``text`` is EMQX's, for the error."""
    steps = []
    for step in path:
        if isinstance(step, int):
            steps.append(str(step - 1))  # EMQX counts from 1
        elif _NAME.fullmatch(step):
            steps.append(step)
        else:
            raise WordsError(text, "a field whose name holds a dot, a star or a bracket cannot be named here")
    return ".".join(steps)


def _literal(text: str) -> str:
    return text.replace("$", "${$}")
