"""The topics of access rules: placeholders, the topic of a request, and filters as sets.

A rule's topic may hold ``${clientid}``, ``${username}``, ``${tenant}``, ``${cert_common_name}`` and
``${client_attrs.NAME}``. A rule matches nothing if a value is empty or holds ``+``, ``#``, ``/`` or NUL, or begins with
``$`` at the start of the topic: with ``${clientid}/#`` a client called ``$SYS`` would own ``$SYS/#``. ``${$}`` stands
for a dollar sign, as in EMQX.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from auth.model import Action, Subject
from bridge.routing.filters import FilterError, split_share, validate_filter
from config.values.topic_filters import MAX_BYTES, covers, intersection

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_ATTRIBUTE: Final = re.compile(r"client_attrs\.([A-Za-z0-9_-]+)")
_NAMES: Final = ("clientid", "username", "tenant", "cert_common_name")
_UNUSABLE: Final = re.compile(r"[+#/\x00]")
_CUT: Final = re.compile(r"\+|#|\$\{")


class TopicTemplate(NamedTuple):
    """A rule's topic that holds placeholders.

    ``parts`` are text and names of placeholders in turn, beginning with text. ``prefix`` begins every topic that it
    makes. ``problem`` says why it never makes a topic, or is empty.
    """

    parts: tuple[str, ...]
    prefix: str
    problem: str

    def resolve(self, subject: Subject) -> str | None:
        """The filter for this subject; None if the rule matches nothing."""
        if self.problem:
            return None
        pieces = list(self.parts)
        for index in range(1, len(pieces), 2):
            value = value_of(pieces[index], subject)
            if not value or _UNUSABLE.search(value) or (value[0] == "$" and index == 1 and not pieces[0]):
                return None
            pieces[index] = value
        return "".join(pieces)


def value_of(name: str, subject: Subject) -> str:
    """The value of a placeholder; empty without one."""
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
    """The parts of a rule's topic. Never raises; ``problem`` has the fault."""
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
    """The sentence about an unknown placeholder."""
    known = ", ".join(f"${{{known}}}" for known in _NAMES)
    return (
        f"${{{name[:100]}}} is no placeholder; there are {known} and ${{client_attrs.NAME}}, "
        "and ${$} stands for a dollar sign"
    )


def topic_problem(text: str, *, eq: bool = False) -> str:
    """Why ``text`` cannot be a rule's topic, as a sentence; empty if it can. For edits and imports."""
    template = parse_topic(text)
    if template.problem:
        return template.problem
    shape = "".join(part if index % 2 == 0 else "x" for index, part in enumerate(template.parts))
    if shape.startswith(("$share/", "$queue/", "$exclusive/", "$delayed/")):
        wrapper = shape[: shape.index("/")]
        return (
            f"the topic {text[:100]!r} begins with {wrapper}/, which is taken off a request before rules are compared; "
            "name the topic that follows"
        )
    if eq and shape and "\0" not in shape:
        shape = shape.replace("+", "x").replace("#", "x")  # an eq topic may have wildcards anywhere
    try:
        validate_filter(shape)
    except FilterError as error:
        return f"{error}"
    return ""


def judged_topic(action: Action, text: str) -> str | None:
    """The topic or filter of a request for comparing with rules; None for a malformed one, which is denied.

    As EMQX does (v5.8.9, ``emqx_topic:parse/2``, then ``emqx_access_control:authorize/3``): ``$share/GROUP/F``,
    ``$queue/F`` and ``$exclusive/F`` count as F, then ``$delayed/SECONDS/TOPIC`` as TOPIC, also nested. A shared
    subscription within another is malformed.
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
    """A topic without its ``$delayed/SECONDS/``; empty without a topic after it."""
    start = 0
    while text.startswith("$delayed/", start):
        start = text.find("/", start + 9) + 1
        if not start:
            return ""
    return text[start:]


def _is_topic(text: str) -> bool:
    """Whether ``text`` is a topic to publish to: not empty, no wildcard, valid Unicode, not too long."""
    if not text or "+" in text or "#" in text or "\0" in text:
        return False
    if text.isascii():
        return len(text) <= MAX_BYTES
    try:
        return len(text.encode()) <= MAX_BYTES
    except UnicodeEncodeError:
        return False


def covered(wide: str, narrow: str) -> bool:
    """Whether the filter ``wide`` matches all that ``narrow``, a topic or filter, stands for. Filters without '+', the
    usual ones, are compared as text."""
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
