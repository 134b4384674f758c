"""What a query, a key or a distinguished name of the `[auth]` tables may ask of a login: ``${username}`` and others."""

from __future__ import annotations

__all__ = ["LOGIN_PLACEHOLDERS", "Placeholder", "quoted_placeholder", "split_placeholders"]

import re
from typing import Final, Literal, get_args

Placeholder = Literal["username", "clientid", "cert_common_name", "peerhost"]
LOGIN_PLACEHOLDERS: Final[tuple[Placeholder, ...]] = get_args(Placeholder)
_PATTERN: Final = re.compile(r"\$\{([^{}]*)\}")
_QUOTES: Final = "'\"`"


def split_placeholders(text: str) -> tuple[tuple[str, ...], tuple[Placeholder, ...]]:
    """The literal parts of ``text`` and the placeholders between them: always one part more than placeholders.

    Raises ValueError with a sentence for a placeholder that no login has, or whose brace is missing.
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


def quoted_placeholder(text: str) -> Placeholder | None:
    """The first placeholder of an SQL text that stands within quotes, where it would be text and no parameter; None
    when none does. Raises ValueError as ``split_placeholders`` does."""
    literals, names = split_placeholders(text)
    quote = ""
    for literal, name in zip(literals, names, strict=False):
        for character in literal:
            if quote:
                quote = "" if character == quote else quote  # a doubled quote closes and opens: the same in the end
            elif character in _QUOTES:
                quote = character
        if quote:
            return name
    return None
