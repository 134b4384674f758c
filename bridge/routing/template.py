"""Templates that make a Kafka topic, a key or a header value from a message: ``devices-${topic[1]}``,
``${payload.id}``.

A template tells what it reads, so that the caller renders it as seldom as possible: once per topic, once per distinct
properties, or once per message. An absent or empty value is missing: two devices without a name are not one device.
``bridge.routing.router`` says what a missing value means.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from bridge.message import MessageView, Properties
from config.errors import ConfigError, GatewayError

Need = Literal["topic", "flags", "properties", "payload", "device", "instance"]
"""What a template reads. ``flags`` are QoS and retain. A bound template reads no ``device`` and ``instance``."""

_NAMES: Final = (
    "topic", "topic[0]", "property.NAME", "content_type", "correlation_data", "response_topic",
    "payload.FIELD", "device", "qos", "retain", "instance", "$",
)  # fmt: skip
_LEVEL: Final = re.compile(r"topic\[(-?[0-9]{1,5})\]")


class TemplateError(ConfigError):
    """A template that cannot be read. ``position`` is the index of the offending character in ``text``."""

    def __init__(self, sentence: str, *, text: str, position: int) -> None:
        super().__init__(sentence)
        self.text = text
        self.position = position


class MissingValue(GatewayError):  # noqa: N818 - a message without a value is an event, not an error of the gateway
    """A message has no value for a placeholder. ``placeholder`` is its text, ``why`` what was not found."""

    def __init__(self, placeholder: str, why: str) -> None:
        super().__init__(f"{placeholder} has no value: {why}")
        self.placeholder = placeholder
        self.why = why


_Part = bytes | Callable[[MessageView], bytes]


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One ``${…}``: its kind, the part after the dot or in brackets, and its text."""

    kind: str
    argument: str
    text: str


class Template:
    """A parsed template. Immutable.

    - ``render(view)``: the text for a message; raises MissingValue;
    - ``render_topic(topic)``: the same for a template that reads at most the topic;
    - ``needs``: what it reads;
    - ``levels``: the numbers in its ``${topic[n]}``.
    """

    __slots__ = ("levels", "needs", "parts", "render", "render_topic", "text")

    text: str
    parts: tuple[str | Placeholder, ...]
    needs: frozenset[Need]
    levels: tuple[int, ...]
    render: Callable[[MessageView], bytes]
    render_topic: Callable[[str], bytes]

    def __init__(self, text: str, parts: tuple[str | Placeholder, ...]) -> None:
        self.text = text
        self.parts = parts
        placeholders = [part for part in parts if isinstance(part, Placeholder)]
        self.needs = frozenset(_KINDS[part.kind][0] for part in placeholders)
        self.levels = tuple(int(part.argument) for part in placeholders if part.kind == "level")
        self.render = _compile(
            [part.encode() if isinstance(part, str) else _KINDS[part.kind][1](part) for part in parts]
        )
        self.render_topic = _compile_topic(parts)

    @staticmethod
    def parse(text: str, *, where: str = "the template") -> Template:
        """Read ``text``; ``where`` names the setting in errors. Raises TemplateError with the position."""
        return _made(text, tuple(_parse(text, where)))

    @property
    def constant(self) -> bytes | None:
        """The result of a template without placeholders, else None."""
        if any(isinstance(part, Placeholder) for part in self.parts):
            return None
        return "".join(part for part in self.parts if isinstance(part, str)).encode()

    def bind(self, *, instance: str, device: Template | None, where: str = "the template") -> Template:
        """This template with ``${instance}`` replaced by its value and ``${device}`` by the route's device template.

        Raises ConfigError if it uses ``${device}`` and the route has none.
        """
        parts: list[str | Placeholder] = []
        for part in self.parts:
            if isinstance(part, str) or part.kind not in ("instance", "device"):
                parts.append(part)
            elif part.kind == "instance":
                parts.append(instance)
            elif device is None:
                raise ConfigError(
                    f"{where}: {self.text!r} uses ${{device}}, but the route has no device setting; "
                    'say where the device\'s name is found, for instance device = "${topic[1]}"'
                )
            else:
                parts += device.parts
        return _made(self.text, tuple(parts))

    def __repr__(self) -> str:
        return f"Template({self.text!r})"


@lru_cache(maxsize=256)  # many routes have the same few templates, of 1 KB each
def _made(text: str, parts: tuple[str | Placeholder, ...]) -> Template:
    return Template(text, parts)


# --- reading ---


def _parse(text: str, where: str) -> list[str | Placeholder]:
    """The text as literal parts and placeholders. Raises ConfigError that begins with ``where``."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _broken(text, error.start, where, "is not valid Unicode there") from None
    parts: list[str | Placeholder] = []
    position = 0
    while (dollar := text.find("$", position)) >= 0:
        if dollar > position:
            parts.append(text[position:dollar])
        following = text[dollar + 1 : dollar + 2]
        if following == "$":
            parts.append("$")
            position = dollar + 2
        elif following == "{":
            end = text.find("}", dollar)
            if end < 0:
                raise _broken(text, dollar, where, "opens a '${' there that is never closed with '}'")
            placeholder = _placeholder(text, dollar, text[dollar + 2 : end], where)
            parts.append(placeholder)
            position = end + 1
        else:
            raise _broken(text, dollar, where, "has a lone '$' there; write ${name} for a value, $$ for a dollar sign")
    if position < len(text):
        parts.append(text[position:])
    return parts


def _placeholder(text: str, position: int, name: str, where: str) -> str | Placeholder:
    """The placeholder ``name`` at a position of ``text``; "$" for ``${$}``. Raises ConfigError with a hint."""
    written = "${" + name + "}"
    if name == "$":
        return "$"
    if name in _KINDS and name not in ("level", "property", "payload"):
        return Placeholder(name, "", written)
    if level := _LEVEL.fullmatch(name):
        return Placeholder("level", level[1], written)
    kind, dot, argument = name.partition(".")
    if kind in ("property", "payload") and dot and argument and not (kind == "payload" and "" in argument.split(".")):
        return Placeholder(kind, argument, written)
    if name in ("client_id", "clientid", "username"):
        raise _broken(
            text,
            position,
            where,
            f"asks for {written} there, but MQTT does not tell a subscriber who published a message. The topic, a user "
            "property or the payload can carry the device's name: "
            "${topic[1]}, ${property.NAME}, ${payload.FIELD}",
        )
    if kind in ("property", "payload"):
        example = "${property.device}" if kind == "property" else "${payload.device} (of a JSON object)"
        raise _broken(text, position, where, f"has {written} there, which must name one {kind} field, as in {example}")
    stem = name.partition(".")[0].partition("[")[0]
    near = difflib.get_close_matches(name, _NAMES, n=1) or difflib.get_close_matches(stem, _NAMES, n=1)
    hint = f"did you mean ${{{near[0]}}}? " if near else ""
    known = ", ".join(f"${{{known}}}" for known in _NAMES)
    raise _broken(text, position, where, f"has an unknown placeholder {written} there; {hint}known are {known}")


def _broken(text: str, position: int, where: str, what: str) -> TemplateError:
    return TemplateError(f"{where}: {text!r}, position {position}: it {what}", text=text, position=position)


# --- rendering ---


def _level_missing(placeholder: str, topic: str) -> MissingValue:
    return MissingValue(placeholder, f"the topic {topic[:200]!r} has no such level, or an empty one")


def _level_reader(placeholder: Placeholder) -> Callable[[str], bytes]:
    """Reads one level of a topic. Splits no more of it than needed: a topic may have 65,535 levels."""
    index = int(placeholder.argument)
    written = placeholder.text

    def from_left(topic: str) -> bytes:
        levels = topic.split("/", index + 1)
        if len(levels) > index and (level := levels[index]):
            return level.encode()
        raise _level_missing(written, topic)

    def from_right(topic: str) -> bytes:
        levels = topic.rsplit("/", -index)
        if len(levels) >= -index and (level := levels[index]):
            return level.encode()
        raise _level_missing(written, topic)

    return from_left if index >= 0 else from_right


def _property_reader(
    what: str, get: Callable[[Properties, str], bytes | None]
) -> Callable[[Placeholder], Callable[[MessageView], bytes]]:
    """Makes readers of a property. ``what`` is its name in their MissingValue."""

    def reader(placeholder: Placeholder) -> Callable[[MessageView], bytes]:
        argument = placeholder.argument

        def read(view: MessageView) -> bytes:
            value = get(view.properties, argument)
            if not value:
                named = f"{what} {argument!r}" if argument else what
                raise MissingValue(placeholder.text, f"the message has no {named}, or an empty one")
            return value

        return read

    return reader


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _user_property(properties: Properties, name: str) -> bytes | None:
    """The first user property of that name: MQTT lets names repeat."""
    for key, value in properties.user:
        if key == name:
            return value.encode()
    return None


def _payload_reader(placeholder: Placeholder) -> Callable[[MessageView], bytes]:
    """Reads the string, number or boolean at a path of object fields and array positions; MissingValue without one."""
    path = placeholder.argument.split(".")
    written = placeholder.text

    def read(view: MessageView) -> bytes:
        try:
            value = view.json()
        except (ValueError, RecursionError) as error:
            raise MissingValue(
                written, f"the payload of {len(view.payload)} bytes is not JSON ({type(error).__name__})"
            ) from None
        for name in path:
            if isinstance(value, dict):
                value = value.get(name)
            elif isinstance(value, list) and name.isdecimal() and len(name) < 6 and int(name) < len(value):
                value = value[int(name)]
            else:
                value = None
            if value is None:
                raise MissingValue(written, f"the payload has no field {name!r} there, or null")
        if isinstance(value, bool):
            return b"true" if value else b"false"
        if not isinstance(value, str) or not value:
            raise MissingValue(
                written, "the field is empty, an object or an array: a text, number or boolean is needed"
            )
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise MissingValue(written, "the field's text is not valid Unicode (half of a surrogate pair)") from None

    return read


def _unbound(placeholder: Placeholder) -> Callable[[MessageView], bytes]:
    def read(_: MessageView) -> bytes:
        raise ValueError(f"{placeholder.text} can be rendered only after bind()")

    return read


def _on_topic(placeholder: Placeholder) -> Callable[[MessageView], bytes]:
    of_topic = _level_reader(placeholder)
    return lambda view: of_topic(view.topic)


_KINDS: Final[dict[str, tuple[Need, Callable[[Placeholder], Callable[[MessageView], bytes]]]]] = {
    "topic": ("topic", lambda _: lambda view: view.topic.encode()),
    "level": ("topic", _on_topic),
    "property": ("properties", _property_reader("user property", _user_property)),
    "content_type": ("properties", _property_reader("content type", lambda p, _: _encoded(p.content_type))),
    "response_topic": ("properties", _property_reader("response topic", lambda p, _: _encoded(p.response_topic))),
    "correlation_data": ("properties", _property_reader("correlation data", lambda p, _: p.correlation_data)),
    "payload": ("payload", _payload_reader),
    "qos": ("flags", lambda _: lambda view: b"%d" % view.qos),
    "retain": ("flags", lambda _: lambda view: b"%d" % view.retain),
    "device": ("device", _unbound),
    "instance": ("instance", _unbound),
}
"""What each kind of placeholder reads, and what makes its reader."""


def _compile(parts: list[_Part]) -> Callable[[MessageView], bytes]:
    """A function that joins constant parts and what the others read from a message, made for the parts."""
    if len(parts) == 1 and callable(parts[0]):
        return parts[0]
    if all(isinstance(part, bytes) for part in parts):
        constant = b"".join(part for part in parts if isinstance(part, bytes))
        return lambda _: constant
    return lambda view: b"".join([part if isinstance(part, bytes) else part(view) for part in parts])


def _compile_topic(parts: tuple[str | Placeholder, ...]) -> Callable[[str], bytes]:
    """As ``_compile``, for a template that reads at most the topic: a new topic needs no view."""
    if len(parts) == 1 and isinstance(parts[0], Placeholder) and parts[0].kind == "topic":
        return str.encode
    readers: list[bytes | Callable[[str], bytes]] = []
    for part in parts:
        if isinstance(part, str):
            readers.append(part.encode())
        elif part.kind == "topic":
            readers.append(str.encode)
        elif part.kind == "level":
            readers.append(_level_reader(part))
        else:
            return _needs_more(part)
    if len(readers) == 1 and callable(readers[0]):
        return readers[0]
    return lambda topic: b"".join([part if isinstance(part, bytes) else part(topic) for part in readers])


def _needs_more(placeholder: Placeholder) -> Callable[[str], bytes]:
    def refuse(_: str) -> bytes:
        raise ValueError(f"{placeholder.text} cannot be rendered from the topic alone")

    return refuse
