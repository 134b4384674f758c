"""Placeholders in queries, keys and distinguished names of the `[auth]` tables: ``${username}`` and others."""

import re
from collections.abc import Sequence
from typing import Final, Literal, get_args

Placeholder = Literal["username", "clientid", "cert_common_name", "peerhost"]
LOGIN_PLACEHOLDERS: Final[tuple[Placeholder, ...]] = get_args(Placeholder)
_PATTERN: Final = re.compile(r"\$\{([^{}]*)\}")
_QUOTES: Final = "'\"`"
SIDE_BY_SIDE: Final = (
    "it has two placeholders side by side, so that ab and c would be taken for a and bc; put a character between them "
    "that the first never has"
)


def split_placeholders(text: str) -> tuple[tuple[str, ...], tuple[Placeholder, ...]]:
    """The literal parts of ``text`` and the placeholders between them. There is one part more than placeholders.

    Raises ValueError with a sentence for an unknown placeholder, or a missing brace.
    """
    pieces = _PATTERN.split(text)
    literals, names = pieces[::2], pieces[1::2]
    if any("${" in literal for literal in literals):
        raise ValueError('a placeholder is written "${name}"; a closing brace is missing')
    found: list[Placeholder] = []
    for name in names:
        known = next((one for one in LOGIN_PLACEHOLDERS if one == name), None)
        if known is None:
            raise ValueError(
                f"${{{name}}} is unknown here; known are {', '.join(f'${{{one}}}' for one in LOGIN_PLACEHOLDERS)}"
            )
        found.append(known)
    return tuple(literals), tuple(found)


def tells_apart(literals: Sequence[str], values: Sequence[str]) -> bool:
    """Whether no other values make the same text between these literals: none is empty, and none but the last has the
    literal behind it within itself (``a:b`` and ``c`` with ":" between them are also ``a`` and ``b:c``)."""
    return all(values) and all(
        (value + literal).find(literal) == len(value) for value, literal in zip(values, literals[1:-1], strict=False)
    )


def check_template(text: str, *, sql: bool) -> None:
    """Raise ValueError with a sentence for a text that finds no user: also without a placeholder, with two side by
    side, and in SQL for one within quotes."""
    if not split_placeholders(text)[1]:
        raise ValueError("it has no placeholder such as ${username}: all devices would be the same user; add one")
    if not sql and "}${" in text:
        raise ValueError(SIDE_BY_SIDE)
    if sql and (quoted := quoted_placeholder(text)) is not None:
        raise ValueError(
            f"it has ${{{quoted}}} within quotes: there it is text and not the value, since a placeholder becomes a "
            "parameter; remove the quotes"
        )


def quoted_placeholder(text: str) -> Placeholder | None:
    """The first placeholder within quotes of an SQL text, where it would not be replaced; or None. Raises ValueError as
    ``split_placeholders`` does."""
    literals, names = split_placeholders(text)
    quote = ""
    for literal, name in zip(literals, names, strict=False):
        for character in literal:
            if quote:
                quote = "" if character == quote else quote  # a doubled quote closes and opens, with the same result
            elif character in _QUOTES:
                quote = character
        if quote:
            return name
    return None
