r"""Regular expressions that settings bring: Python's syntax and meaning, matched in linear time.

Python's own engine tries one way after the other: ``(a+)+$`` takes seconds for thirty characters, which a device
sends. RE2 takes time in proportion to the text, always. It has neither lookaround nor backreferences, and some of what
both accept means something else to it: ``\d``, ``\w`` and ``\s`` are ASCII there, ``$`` never stands before a line feed
at the end, ``{,3}`` is four characters, and ignoring case knows no Turkish letters. So a pattern is read as Python
reads it and written anew for RE2. What cannot be written with the same meaning is refused.

The two know Unicode of different years: letters and digits that are younger than the Python in use may count as such.
"""

from __future__ import annotations

__all__ = ["Pattern", "PatternError", "compile_pattern"]

import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST: Final = 10_000
_GLOBAL: Final = re.compile(r"\(\?([aiLmsux]+)\)")
_SCOPED: Final = re.compile(r"\(\?([aiLmsux]*)(?:-([imsx]+))?:")
_REPEAT: Final = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")
_CHARACTER: Final = re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|0[0-7]{0,2}|[0-7]{3}")
_GROUP: Final = re.compile(r"\(\?P<\w+>")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_SPACES: Final = ((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
                  (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000))  # fmt: skip
_LAST: Final = 0x10FFFF
_NOWHERE: Final = (-1, -1)
_REFUSED: Final = {
    "(?=": "a lookahead",
    "(?!": "a negative lookahead",
    "(?<=": "a lookbehind",
    "(?<!": "a negative lookbehind",
    "(?>": "an atomic group",
    "(?P=": "a backreference",
    "(?(": "a condition",
}
_DOTTED: Final = frozenset(
    (0x49, 0x69, 0x130, 0x131)
)  # I, i, and those with and without a dot: equal to Python where case is ignored, not to RE2


class PatternError(ValueError):
    """A pattern that cannot be used; a sentence that says what in it, and what to write instead."""


class Pattern:
    """A compiled pattern: whether it is found in a text, or is all of it. Linear in the text's length.

    Asks RE2's own matcher, below the module's imitation of ``re``, which makes a match object of each answer and counts
    the characters before it: 2.4 µs instead of 14.5. Python's engine takes 0.4."""

    __slots__ = ("_found", "_from_anywhere", "_from_end_to_end", "_whole", "text")

    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        from re2 import _re2 as engine  # some 20 ms, which a gateway without patterns need not pay

        self.text = text
        options = engine.RE2.Options()
        options.log_errors = False  # it would write to stderr
        matchers = []
        for end in (r"(?:\n?\z)", r"\z"):
            matcher = engine.RE2(_Reader(text, end=end).read().encode(), options)
            if not matcher.ok():
                said = matcher.error().decode(errors="replace")
                raise PatternError(f"the linear-time engine (RE2) does not take {text!r}: {said}")
            matchers.append(matcher.Match)
        self._found, self._whole = matchers
        self._from_anywhere = engine.RE2.Anchor.UNANCHORED
        self._from_end_to_end = engine.RE2.Anchor.ANCHOR_BOTH

    def __repr__(self) -> str:
        return f"<Pattern {self.text!r}>"

    def found_in(self, text: str) -> bool:
        """Whether it matches somewhere, as ``re.search``."""
        data = _encoded(text)
        return bool(self._found(self._from_anywhere, data, 0, len(data))[0] != _NOWHERE)

    def is_all_of(self, text: str) -> bool:
        """Whether it matches all of the text, as ``re.fullmatch``."""
        data = _encoded(text)
        return bool(self._whole(self._from_end_to_end, data, 0, len(data))[0] != _NOWHERE)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can spell half a surrogate pair, which UTF-8 cannot
        return _SURROGATE.sub("\ufffd", text).encode()


def compile_pattern(text: str) -> Pattern:
    """The pattern, ready to be matched. Raises PatternError for one that Python does not take, or that RE2 cannot match
    with the same meaning."""
    if len(text) > _LONGEST:
        raise PatternError(f"a pattern of {len(text)} characters is too long; {_LONGEST} is the most")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python may read otherwise; here it is read as now
            re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"no regular expression: {error}") from None
    if _SURROGATE.search(text):
        raise PatternError("a pattern is UTF-8, without surrogates")
    return Pattern(text)


@dataclass(slots=True)
class _Scope:
    """What holds within a group. ``ended``: the text's end was asked for, so nothing more can follow."""

    ignore_case: bool
    multiline: bool
    dot_all: bool
    ended: bool = False
    ended_before: bool = field(default=False)  # in an alternative before this one


class _Reader:
    """Reads a pattern that Python has accepted, and writes it for RE2."""

    def __init__(self, text: str, *, end: str) -> None:
        self._text = text
        self._end = end
        self._at = 0
        self._ascii = False
        self._scopes: list[_Scope] = []

    def read(self) -> str:
        flags = _GLOBAL.match(self._text)
        letters = flags[1] if flags else ""
        self._at = flags.end() if flags else 0
        self._refuse_flags(letters)
        self._ascii = "a" in letters
        self._scopes.append(_Scope("i" in letters, "m" in letters, "s" in letters))
        pieces = []
        while self._at < len(self._text):
            pieces.append(self._next())
        return "".join(pieces)

    def _no(self, what: str, instead: str) -> PatternError:
        return PatternError(
            f"{self._text!r} has {what}, which cannot be matched in linear time with the same meaning: {instead}"
        )

    def _refuse_flags(self, letters: str) -> None:
        if "x" in letters:
            raise self._no("the flag x", "write it without spaces and comments")

    def _next(self) -> str:
        scope = self._scopes[-1]
        text, at = self._text, self._at
        one = text[at]
        self._at += 1
        match one:
            case "(":
                return self._open()
            case ")":
                self._scopes.pop()
                self._scopes[-1].ended |= scope.ended or scope.ended_before
                return ")"
            case "|":
                scope.ended_before |= scope.ended
                scope.ended = False
                return "|"
            case "*" | "+" | "?":
                return self._repeat(one)
            case "{" if (found := _REPEAT.match(text, at)) is not None and found[0] != "{}":
                self._at = found.end()
                least = found[1] or "0"
                return self._repeat(f"{{{least}{found[2] or ''}{found[3] or ''}}}")
            case "^":
                return "(?m:^)" if scope.multiline else r"\A"
            case "$" if scope.multiline:
                return "(?m:$)"
            case "$":
                scope.ended = True
                return self._end
        self._more()
        match one:
            case ".":
                return "(?s:.)" if scope.dot_all else r"[^\n]"
            case "[":
                return self._class()
            case "\\":
                return self._escape()
        return self._literal(ord(one))

    def _more(self) -> None:
        """Something is to be matched here."""
        if any(scope.ended for scope in self._scopes):
            raise self._no("something behind a $", r"end it there, or write \n? and \Z for the end of a text")

    def _repeat(self, mark: str) -> str:
        following = self._text[self._at : self._at + 1]
        if following == "+":
            raise self._no(f"the possessive {mark}+", "write it without the second +")
        if following == "?":
            self._at += 1  # how much is taken first makes no difference to whether it matches
        return mark

    def _open(self) -> str:
        text, at = self._text, self._at - 1
        scope = self._scopes[-1]
        inner = _Scope(scope.ignore_case, scope.multiline, scope.dot_all)
        if not text.startswith("(?", at):
            self._scopes.append(inner)
            return "(?:"
        if text.startswith("(?#", at):
            self._at = text.index(")", at) + 1
            return ""
        if found := _GROUP.match(text, at):
            self._at = found.end()
            self._scopes.append(inner)
            return "(?:"
        if found := _SCOPED.match(text, at):
            on, off = found[1], found[2] or ""
            self._refuse_flags(on)
            if "a" in on or "u" in on:
                raise self._no(f"{found[0]}", "put (?a) in front of the whole pattern, or leave it out")
            inner.ignore_case = ("i" in on or inner.ignore_case) and "i" not in off
            inner.multiline = ("m" in on or inner.multiline) and "m" not in off
            inner.dot_all = ("s" in on or inner.dot_all) and "s" not in off
            self._at = found.end()
            self._scopes.append(inner)
            return "(?:"
        what = next(
            (name for start, name in _REFUSED.items() if text.startswith(start, at)), "a construct of Python alone"
        )
        raise self._no(what, "in a filter, join several patterns by `and`, `or` and `not`")

    def _escape(self) -> str:
        one = self._text[self._at]
        if one in "dDsSwW":
            self._at += 1
            return f"[{self._category(one)}]" if one != "W" else f"[^{self._category('w')}]"
        if one in "bB":
            self._at += 1
            if not self._ascii:
                raise self._no(
                    rf"\{one} among letters of all languages", rf"put (?a) in front: \w, \d and \{one} are ASCII then"
                )
            return rf"\{one}"
        if one == "A":
            self._at += 1
            return r"\A"
        if one == "Z":
            self._at += 1
            return r"\z"
        return self._literal(self._escaped())

    def _escaped(self) -> int:
        """The character that an escape stands for; the reader is behind the backslash."""
        text, at = self._text, self._at
        if found := _CHARACTER.match(text, at):
            self._at = found.end()
            written = found[0]
            if written[0] in "01234567":
                return int(written, 8)
            if written[0] == "N":
                import unicodedata

                return ord(unicodedata.lookup(written[2:-1]))
            return int(written[1:], 16)
        one = text[at]
        if one.isdigit():
            raise self._no(f"the backreference \\{one}", "write what it repeats, or use several patterns")
        self._at += 1
        return ord({"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}.get(one, one))

    def _literal(self, code: int) -> str:
        if self._scopes[-1].ignore_case:
            return f"{self._fold}[{_written(self._cases([(code, code)]))}])"
        return _code(code)

    @property
    def _fold(self) -> str:
        """How a class begins where case is ignored. RE2 also takes the sign of Kelvin for a k: not among ASCII."""
        return "(?:" if self._ascii else "(?i:"

    def _cases(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """These characters and those that differ from them in case alone, to Python."""
        whole = list(ranges)
        for low, high in tuple(whole):
            if not self._ascii and any(low <= one <= high for one in _DOTTED):
                whole += [(one, one) for one in _DOTTED]
            for first, shift in ((ord("A"), 32), (ord("a"), -32)) if self._ascii else ():
                begin, end = max(low, first), min(high, first + 25)
                if begin <= end:
                    whole.append((begin + shift, end + shift))
        return whole

    def _category(self, letter: str) -> str:
        """``\\d`` and its like, as they are written within brackets; all but ``\\W``."""
        spaces = ((0x09, 0x0D), (0x20, 0x20)) if self._ascii else _SPACES
        match letter:
            case "d":
                return "0-9" if self._ascii else r"\p{Nd}"
            case "D":
                return _written(_others([(0x30, 0x39)])) if self._ascii else r"\P{Nd}"
            case "s":
                return _written(spaces)
            case "S":
                return _written(_others(spaces))
        return "0-9A-Za-z_" if self._ascii else r"\p{L}\p{N}_"

    def _class(self) -> str:
        text = self._text
        negated = text.startswith("^", self._at)
        self._at += negated
        ranges: list[tuple[int, int]] = []
        categories = ""
        no_word = False
        first = True
        while first or text[self._at] != "]":
            first = False
            one = self._member()
            if isinstance(one, str):
                no_word |= one == "W"
                categories += "" if one == "W" else self._category(one)
                continue
            high = one
            if text[self._at] == "-" and text[self._at + 1] != "]":
                self._at += 1
                last = self._member()
                assert isinstance(last, int)  # else Python would have refused it
                high = last
            ranges.append((one, high))
        self._at += 1
        fold = "(?:"
        if self._scopes[-1].ignore_case:
            ranges, fold = self._cases(ranges), self._fold
        if negated:
            if no_word:
                raise self._no(r"a negated class with \W", "write the characters that it shall match")
            if categories and fold != "(?:":
                raise self._no(r"a negated class with \d, \s or \w while case is ignored", "write it without (?i)")
            return f"{fold}[^{_written(ranges)}{categories}])"
        parts = [f"{fold}[{_written(ranges)}])"] if ranges else []
        parts += [f"[{categories}]"] if categories else []  # not folded: some signs have letters as their other case
        parts += [f"[^{self._category('w')}]"] if no_word else []
        return f"(?:{'|'.join(parts)})"

    def _member(self) -> int | str:
        """A character within brackets, or the letter of a category."""
        one = self._text[self._at]
        self._at += 1
        if one != "\\":
            return ord(one)
        letter = self._text[self._at]
        if letter in "dDsSwW":
            self._at += 1
            return letter
        if letter == "b":
            self._at += 1
            return 8
        return self._escaped()


def _code(code: int) -> str:
    return rf"\x{{{code:x}}}"


def _written(ranges: Iterable[tuple[int, int]]) -> str:
    return "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in ranges)


def _others(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """All characters but these; ``ranges`` in their order."""
    others, following = [], 0
    for low, high in ranges:
        if low > following:
            others.append((following, low - 1))
        following = high + 1
    others.append((following, _LAST))
    return others
