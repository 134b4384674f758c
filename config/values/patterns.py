r"""Regular expressions of settings: Python's syntax and meaning, matched in linear time.

Python's engine tries all ways one after the other: ``(a+)+$`` takes seconds for thirty characters of a device. RE2's
time is always proportional to the text. It has neither lookaround nor backreferences, and some syntax has another
meaning: ``\d``, ``\w`` and ``\s`` are ASCII, ``$`` does not match before a final line feed, ``{,3}`` is four
characters, and ignoring case does not include Turkish letters. So a pattern is parsed as in Python and translated for
RE2. A pattern without a translation of the same meaning is refused.

Python and RE2 have different versions of Unicode, so newer letters and digits may match although Python lacks them.
"""

import re
import warnings
from collections.abc import Iterable
from re import _parser  # type: ignore[attr-defined] # Python's own reader of patterns; a property test watches it
from typing import Any, Final

_LONGEST: Final = 10_000
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_SPACES: Final = ((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
                  (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000))  # fmt: skip
_LAST: Final = 0x10FFFF
_NOWHERE: Final = (-1, -1)
_JOIN: Final = "in a filter, join several patterns by `and`, `or` and `not`"
_REFUSED: Final = {
    _parser.ASSERT: ("a look", _JOIN),
    _parser.ASSERT_NOT: ("a negative look", _JOIN),
    _parser.FAILURE: ("a negative lookahead", _JOIN),
    _parser.ATOMIC_GROUP: ("an atomic group", _JOIN),
    _parser.POSSESSIVE_REPEAT: ("a possessive repetition", "write it without the second +"),
    _parser.GROUPREF: ("the backreference \\", "write what it repeats, or use several patterns"),
    _parser.GROUPREF_EXISTS: ("a condition", _JOIN),
}
_CATEGORIES: Final = {
    _parser.CATEGORY_DIGIT: "d",
    _parser.CATEGORY_NOT_DIGIT: "D",
    _parser.CATEGORY_SPACE: "s",
    _parser.CATEGORY_NOT_SPACE: "S",
    _parser.CATEGORY_WORD: "w",
    _parser.CATEGORY_NOT_WORD: "W",
}
_MARKS: Final = {(0, _parser.MAXREPEAT): "*", (1, _parser.MAXREPEAT): "+", (0, 1): "?"}
_DOTTED: Final = frozenset(
    (0x49, 0x69, 0x130, 0x131)
)  # I, i, and those with and without a dot: equal for Python if case is ignored, not for RE2


class PatternError(ValueError):
    """An unusable pattern. The sentence names the part, and what to write instead."""


class Pattern:
    """A compiled pattern, to search or match completely, in time linear in the text's length.

    Uses RE2's own matcher instead of its module's imitation of ``re``, which makes a match object and counts the
    characters before it: 2.4 µs instead of 14.5. Python's engine takes 0.4."""

    __slots__ = ("_found", "_from_anywhere", "_from_end_to_end", "_whole", "text")

    def __init__(self, text: str, tree: Any) -> None:
        """``tree`` is what Python reads ``text`` into. Raises PatternError."""
        from re2 import _re2 as engine  # takes 20 ms, only for a gateway with patterns

        self.text = text
        options = engine.RE2.Options()
        options.log_errors = False  # to stderr
        matchers = []
        for end in (r"(?:\n?\z)", r"\z"):
            matcher = engine.RE2(_Translator(text, end=end).translated(tree).encode(), options)
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
        """Whether it matches anywhere, like ``re.search``."""
        data = _encoded(text)
        return bool(self._found(self._from_anywhere, data, 0, len(data))[0] != _NOWHERE)

    def is_all_of(self, text: str) -> bool:
        """Whether it matches the whole text, like ``re.fullmatch``."""
        data = _encoded(text)
        return bool(self._whole(self._from_end_to_end, data, 0, len(data))[0] != _NOWHERE)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can contain half a surrogate pair, UTF-8 cannot
        return _SURROGATE.sub("\ufffd", text).encode()


def compile_pattern(text: str) -> Pattern:
    """A pattern ready for matching. Raises PatternError if Python refuses it, or RE2 cannot match it with the same
    meaning."""
    if len(text) > _LONGEST:
        raise PatternError(f"a pattern of {len(text)} characters is too long; {_LONGEST} is the most")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of syntax with another meaning in a later Python
            re.compile(text)
            tree = _parser.parse(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"no regular expression: {error}") from None
    if _SURROGATE.search(text):
        raise PatternError("a pattern is UTF-8, without surrogates")
    return Pattern(text, tree)


class _Translator:
    """Writes a pattern that Python has accepted for RE2, from the tree that Python itself reads it into."""

    def __init__(self, text: str, *, end: str) -> None:
        """``end`` is what a final ``$`` becomes."""
        self._text = text
        self._end = end
        self._ascii = False

    def translated(self, tree: Any) -> str:
        flags = tree.state.flags
        self._refuse_flags(flags)
        self._ascii = bool(flags & re.ASCII)
        return self._sequence(tree, flags, ended=False)[0]

    def _no(self, what: str, instead: str) -> PatternError:
        return PatternError(
            f"{self._text!r} has {what}, which cannot be matched in linear time with the same meaning: {instead}"
        )

    def _refuse_flags(self, flags: int) -> None:
        if flags & re.VERBOSE:
            raise self._no("the flag x", "write it without spaces and comments")

    def _sequence(self, items: Iterable[tuple[Any, Any]], flags: int, *, ended: bool) -> tuple[str, bool]:
        """The items for RE2. ``ended``, before and behind them: a ``$`` has required the end of the text."""
        pieces = []
        for kind, value in items:
            text, ended = self._item(kind, value, flags, ended=ended)
            pieces.append(text)
        return "".join(pieces), ended

    def _item(self, kind: Any, value: Any, flags: int, *, ended: bool) -> tuple[str, bool]:
        match kind:
            case _parser.SUBPATTERN:
                _, on, off, inner = value
                self._refuse_flags(on)
                if on & (re.ASCII | re.UNICODE):
                    raise self._no(
                        "the flag a or u of a group", "put (?a) in front of the whole pattern, or leave it out"
                    )
                text, ended = self._sequence(inner, (flags | on) & ~off, ended=ended)
                return f"(?:{text})", ended
            case _parser.BRANCH:
                made = [self._sequence(one, flags, ended=ended) for one in value[1]]
                return f"(?:{'|'.join(text for text, _ in made)})", any(after for _, after in made)
            case _parser.MAX_REPEAT | _parser.MIN_REPEAT:  # greediness does not decide whether it matches
                least, most, inner = value
                text, ended = self._sequence(inner, flags, ended=ended)
                if ended and most > 1:
                    raise self._no(
                        "a repeated group with a $", r"repeat it without the $, or write \n? and \Z for the end"
                    )
                counted = f"{{{least},{'' if most is _parser.MAXREPEAT else most}}}"
                return f"(?:{text}){_MARKS.get((least, most), counted)}", ended
            case _parser.AT if value is _parser.AT_END:
                return ("(?m:$)", ended) if flags & re.MULTILINE else (self._end, True)
        if kind in _REFUSED:
            what, instead = _REFUSED[kind]
            if kind in {_parser.ASSERT, _parser.ASSERT_NOT}:
                what += "ahead" if value[0] > 0 else "behind"
            elif kind is _parser.GROUPREF:
                what += str(value)
            raise self._no(what, instead)
        if ended:
            raise self._no("something behind a $", r"end it there, or write \n? and \Z for the end of a text")
        match kind:
            case _parser.AT:
                return self._place(value, flags), ended
            case _parser.ANY:
                return "(?s:.)" if flags & re.DOTALL else r"[^\n]", ended
            case _parser.LITERAL:
                return self._class([(kind, value)], flags) if flags & re.IGNORECASE else _code(value), ended
            case _parser.NOT_LITERAL:
                return self._class([(_parser.NEGATE, None), (_parser.LITERAL, value)], flags), ended
            case _parser.IN:
                return self._class(value, flags), ended
        raise self._no("a construct of Python alone", "write it in another way")

    def _place(self, place: Any, flags: int) -> str:
        """RE2's form of an anchor or a word boundary."""
        match place:
            case _parser.AT_BEGINNING if flags & re.MULTILINE:
                return "(?m:^)"
            case _parser.AT_BEGINNING | _parser.AT_BEGINNING_STRING:
                return r"\A"
            case _parser.AT_END_STRING:
                return r"\z"
        if place is not _parser.AT_BOUNDARY:  # to RE2 there is one within each letter beyond ASCII
            raise self._no(r"\B", r"write it with \b, or the characters that it shall stand between")
        if not self._ascii:
            raise self._no(r"\b among letters of all languages", r"put (?a) in front: \w, \d and \b are ASCII then")
        return r"\b"

    @property
    def _fold(self) -> str:
        """The beginning of a class if case is ignored. RE2 also equates the Kelvin sign with k, unlike Python in
        ASCII."""
        return "(?:" if self._ascii else "(?i:"

    def _cases(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """The characters of ``ranges`` and, by Python's rules, those that differ from them only in case."""
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
        """``\\d`` and similar ones within brackets; not ``\\W``."""
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

    def _class(self, members: Iterable[tuple[Any, Any]], flags: int) -> str:
        """RE2's form of a bracketed class."""
        ranges: list[tuple[int, int]] = []
        letters = ""
        negated = False
        for kind, value in members:
            match kind:
                case _parser.NEGATE:
                    negated = True
                case _parser.CATEGORY:
                    letters += _CATEGORIES[value]
                case _:
                    ranges.append(value if kind is _parser.RANGE else (value, value))
        categories = "".join(map(self._category, letters.replace("W", "")))
        fold = "(?:"
        if flags & re.IGNORECASE:
            ranges, fold = self._cases(ranges), self._fold
        if negated:
            if "W" in letters:
                raise self._no(r"a negated class with \W", "write the characters that it shall match")
            if categories and fold != "(?:":
                raise self._no(r"a negated class with \d, \s or \w while case is ignored", "write it without (?i)")
            return f"{fold}[^{_written(ranges)}{categories}])"
        parts = [f"{fold}[{_written(ranges)}])"] if ranges else []
        if fold == "(?:" and not letters and len(one := set(ranges)) == 2 and all(low == high for low, high in one):
            # RE2 makes [kK] a letter without case, and joins those of a branch with the Kelvin sign.
            parts = [_code(low) for low, _ in sorted(one)]
        # Not folded, because some signs have letters as their other case.
        parts += [f"[{categories}]"] if categories else []
        parts += [f"[^{self._category('w')}]"] if "W" in letters else []
        return f"(?:{'|'.join(parts)})"


def _code(code: int) -> str:
    return rf"\x{{{code:x}}}"


def _written(ranges: Iterable[tuple[int, int]]) -> str:
    return "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in ranges)


def _others(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """All other characters; ``ranges`` in their order."""
    others, following = [], 0
    for low, high in ranges:
        if low > following:
            others.append((following, low - 1))
        following = high + 1
    others.append((following, _LAST))
    return others
