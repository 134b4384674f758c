"""The topics of access rules: placeholders, what a request is judged as, and filters compared as sets.

A rule's topic may hold ``${clientid}``, ``${username}``, ``${tenant}``, ``${cert_common_name}`` and
``${client_attrs.NAME}``. A placeholder names something only when its value is there and is a part of one level: a value
that is empty, or that holds ``+``, ``#``, ``/`` or NUL, makes the whole rule match nothing, and so does one that begins
with ``$`` at the very start of a topic (a client that calls itself ``$SYS`` would else own what ``${clientid}/#`` then
says). ``${$}`` stands for a dollar sign, as in EMQX.
"""

from __future__ import annotations

__all__ = ["TopicTemplate", "covered", "judged_topic", "parse_topic", "shared", "topic_problem"]

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.routing.filters import FilterError, covers, intersection, split_share, validate_filter

if TYPE_CHECKING:
    from auth.model import Action, Subject

MAX_BYTES: Final = 65_535  # a topic travels behind a two-byte length
_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_ATTRIBUTE: Final = re.compile(r"client_attrs\.([A-Za-z0-9_-]+)")
_NAMES: Final = ("clientid", "username", "tenant", "cert_common_name")
_UNUSABLE: Final = re.compile(r"[+#/\x00]")
_CUT: Final = re.compile(r"\+|#|\$\{")


class TopicTemplate(NamedTuple):
    """A rule's topic that holds placeholders.

    ``parts`` are literal text and names of placeholders in turn, beginning with text. ``prefix`` is what every topic
    it can come to begins with. ``problem`` says why it can never come to a topic, or is empty.
    """

    parts: tuple[str, ...]
    prefix: str
    problem: str

    def resolve(self, subject: Subject) -> str | None:
        """The filter that it comes to for this subject, or None: then the rule matches nothing."""
        if self.problem:
            return None
        pieces = list(self.parts)
        for index in range(1, len(pieces), 2):
            value = _value(pieces[index], subject)
            if not value or _UNUSABLE.search(value) or (value[0] == "$" and index == 1 and not pieces[0]):
                return None
            pieces[index] = value
        return "".join(pieces)


def _value(name: str, subject: Subject) -> str:
    if name == "clientid":
        return subject.clientid
    if name == "username":
        return subject.username
    if name == "tenant":
        return subject.tenant
    if name == "cert_common_name":
        return subject.cert_common_name
    return subject.attributes.get(name[13:], "")  # behind client_attrs.


@lru_cache(maxsize=16_384)
def parse_topic(text: str) -> TopicTemplate:
    """What a rule's topic is made of. Never raises; ``problem`` says what is wrong with it."""
    pieces = _PLACEHOLDER.split(text)
    parts = [pieces[0]]
    problem = ""
    for name, literal in zip(pieces[1::2], pieces[2::2], strict=True):
        if name == "$":
            parts[-1] += "$" + literal
            continue
        if name not in _NAMES and not _ATTRIBUTE.fullmatch(name):
            problem = problem or _unknown(name)
        parts += [name, literal]
    cut = _CUT.search(text)
    return TopicTemplate(tuple(parts), text[: cut.start()] if cut else text, problem)


def _unknown(name: str) -> str:
    known = ", ".join(f"${{{known}}}" for known in _NAMES)
    return (
        f"${{{name[:100]}}} is no placeholder; there are {known} and ${{client_attrs.NAME}}, "
        "and ${$} stands for a dollar sign"
    )


def topic_problem(text: str, *, eq: bool = False) -> str:
    """Why ``text`` cannot be a rule's topic, as a sentence, or nothing. For edits and imports."""
    template = parse_topic(text)
    if template.problem:
        return template.problem
    shape = "".join(part if index % 2 == 0 else "x" for index, part in enumerate(template.parts))
    if shape.startswith(("$share/", "$queue/", "$exclusive/", "$delayed/")):
        wrapper = shape[: shape.index("/")]
        return (
            f"the topic {text[:100]!r} begins with {wrapper}/, which is taken off a request before rules are asked; "
            "name the topic that follows"
        )
    if eq and shape and "\0" not in shape:
        shape = shape.replace("+", "x").replace("#", "x")  # any text may be compared, but for what follows
    try:
        validate_filter(shape)
    except FilterError as error:
        return f"{error}"
    return ""


def judged_topic(action: Action, text: str) -> str | None:
    """The topic or filter that a request is judged by, or None when it is malformed and nothing may be allowed.

    EMQX does the same before it looks at rules (v5.8.9, ``emqx_topic:parse/2``, then
    ``emqx_access_control:authorize/3``): a subscription to ``$share/GROUP/F``, ``$queue/F`` or ``$exclusive/F`` counts
    as F; then ``$delayed/SECONDS/TOPIC`` as TOPIC, however often it is nested. A shared subscription to a shared one is
    malformed.
    """
    if action == "publish":
        text = _undelayed(text)
        return text if _is_topic(text) else None
    try:
        if text.startswith("$exclusive/"):
            text = text[11:]
        else:
            _group, text = split_share(text)
        text = _undelayed(text)
        if text.startswith(("$share/", "$queue/", "$exclusive/")):
            return None
        validate_filter(text)
    except FilterError:
        return None
    return text


def _undelayed(text: str) -> str:
    """A topic without ``$delayed/SECONDS/`` in front; empty when there is none behind it."""
    start = 0
    while text.startswith("$delayed/", start):
        start = text.find("/", start + 9) + 1
        if not start:
            return ""
    return text[start:]


def _is_topic(text: str) -> bool:
    """Whether something can be published to ``text``: not empty, no wildcard, valid Unicode, not too long."""
    if not text or "+" in text or "#" in text or "\0" in text:
        return False
    if text.isascii():
        return len(text) <= MAX_BYTES
    try:
        return len(text.encode()) <= MAX_BYTES
    except UnicodeEncodeError:
        return False


def covered(wide: str, narrow: str) -> bool:
    """Whether the filter ``wide`` matches all that ``narrow``, a topic or filter, stands for. As
    ``bridge.routing.filters``
    has it; the usual filters, without '+', are compared as text."""
    if "+" in wide:
        return covers(wide, narrow)
    if wide[-1:] != "#":
        return wide == narrow
    if len(wide) == 1:
        return narrow[:1] != "$"
    return wide[-2] == "/" and (narrow.startswith(wide[:-1]) or narrow == wide[:-2])


def shared(first: str, second: str) -> bool:
    """Whether two topics or filters have a topic in common."""
    if "+" not in second and second[-1:] != "#":
        return covered(first, second)
    return intersection(first, second) is not None
