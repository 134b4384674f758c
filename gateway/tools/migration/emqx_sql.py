"""The SQL of EMQX's rules, as much of it as has a counterpart here.

    SELECT field [AS name], … FROM "filter", … [WHERE condition]

A condition is made of comparisons between fields and constants, ``=~`` with a topic filter, AND, OR, NOT and brackets.
Everything else (functions, arithmetic, CASE, FOREACH, jq) is named as it stands and refused: a filter that is half
understood lets through what it should not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*(?:\n|$))
    | (?P<text>'(?:[^'\\]|\\.|'')*')
    | (?P<quoted>"[^"]*")
    | (?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]))
    | (?P<word>[A-Za-z_$][\w$]*)
    | (?P<sign>=~|!=|<>|<=|>=|[=<>()\[\],.*+/;:{}-])
    """,
    re.VERBOSE,
)
_WORDS: Final = frozenset(
    "select from where and or not as foreach do incase case when then else end in div mod".split()  # noqa: SIM905
)
_OPERATORS: Final = {"=": "=", "!=": "!=", "<>": "!=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "=~": "=~"}
_DEEP: Final = 50  # brackets within brackets: a parser that calls itself has an end


class SqlError(ValueError):
    """Something that has no counterpart, or is no SQL. ``snippet`` is that part of the statement, as it stands."""

    def __init__(self, reason: str, snippet: str) -> None:
        super().__init__(f"{reason}: {snippet}")
        self.reason = reason
        self.snippet = snippet


@dataclass(frozen=True, slots=True)
class Field:
    """``payload.a.b`` is ("payload", "a", "b"); an array's index is a number, from 1 as EMQX counts."""

    path: tuple[str | int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Constant:
    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Comparison:
    operator: str
    left: Field | Constant
    right: Field | Constant


@dataclass(frozen=True, slots=True)
class Negation:
    of: Condition


@dataclass(frozen=True, slots=True)
class Junction:
    word: Literal["and", "or"]
    parts: tuple[Condition, ...]


Condition = Comparison | Negation | Junction | Field


@dataclass(frozen=True, slots=True)
class Selected:
    """One of the selected fields: its name in the result, with dots, and the field that it is; None where it is
    computed."""

    name: str
    field: Field | None
    text: str


@dataclass(frozen=True, slots=True)
class Statement:
    """``where`` None: there is none. ``refused`` says why it could not be read, with the words themselves; the rest of
    the statement stands nevertheless."""

    selected: tuple[Selected, ...]
    topics: tuple[str, ...]
    where: Condition | None
    where_text: str
    refused: SqlError | None

    @property
    def everything(self) -> bool:
        """``SELECT *``, whatever else is selected."""
        return any(one.name == "*" for one in self.selected)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """A keyword in small letters; empty for everything else."""
        lowered = self.text.lower()
        return lowered if self.kind == "word" and lowered in _WORDS else ""


def parse_sql(text: str) -> Statement:
    """Read a rule's statement. Raises SqlError where not even fields and topics can be told."""
    return _Parser(text).statement()


class _Parser:
    def __init__(self, text: str) -> None:
        self._sql = text
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    def statement(self) -> Statement:
        """The whole text. A condition that is not understood is None, with its text and the error beside it."""
        if self._peek().word == "foreach":
            raise SqlError("FOREACH makes several messages of one; the split interceptor may do", _line(self._sql))
        self._expect_word("select")
        selected = self._selected()
        self._expect_word("from")
        topics = [self._topic()]
        while self._take_sign(","):
            topics.append(self._topic())
        where, refused, where_text = None, None, ""
        if self._peek().word == "where":
            self._at += 1
            where_text = _line(self._sql[self._peek().start :]).rstrip("; ")
            try:
                where = self._condition()
                self._take_sign(";")
                if self._peek().kind != "end":
                    raise self._refused("not understood", self._at)
            except SqlError as error:
                where, refused = None, error
        elif not self._take_sign(";") and self._peek().kind != "end":
            raise self._refused("not understood", self._at)
        return Statement(tuple(selected), tuple(topics), where, where_text, refused)

    # --- fields and topics

    def _selected(self) -> list[Selected]:
        """The selected fields, up to FROM. Computed ones are kept as text."""
        found: list[Selected] = []
        while True:
            first = self._at
            depth = 0
            while not (depth == 0 and (self._peek().word == "from" or self._peek().text == ",")):
                token = self._peek()
                if token.kind == "end":
                    raise self._refused("there is no FROM", first)
                depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "sign" else 0
                self._at += 1
            found.append(self._one_selected(first, self._at))
            if not self._take_sign(","):
                return found

    def _one_selected(self, first: int, last: int) -> Selected:
        """What these tokens select. Anything but a field by itself has no field, only its text."""
        tokens = self._tokens[first:last]
        if not tokens:
            raise self._refused("a field is missing", first)
        text = self._sql[tokens[0].start : tokens[-1].end]
        if len(tokens) == 1 and tokens[0].text == "*":
            return Selected("*", None, text)
        alias = ""
        at = next((n for n in range(len(tokens) - 2, 0, -1) if tokens[n].word == "as"), None)
        if at is not None:  # AS name, AS a.b.c
            alias = self._sql[tokens[at + 1].start : tokens[-1].end].strip("'\"")
            tokens = tokens[:at]
        standing, self._at = self._at, first
        try:
            field = self._field()
            simple = self._at == first + len(tokens)
        except SqlError:
            simple = False
        self._at = standing
        if not simple:
            return Selected(alias, None, text)
        return Selected(alias or ".".join(map(str, field.path)), field, text)

    def _topic(self) -> str:
        token = self._peek()
        if token.kind not in {"quoted", "text"}:
            raise self._refused('a topic in "…" is wanted', self._at)
        self._at += 1
        return token.text[1:-1]

    # --- conditions

    def _condition(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEP:
            raise self._refused("too deep", self._at)
        try:
            return self._joined("or")
        finally:
            self._depth -= 1

    def _joined(self, word: Literal["and", "or"]) -> Condition:
        """Conditions joined by this word; AND binds closer than OR."""
        parts = [self._joined("and") if word == "or" else self._negated()]
        while self._peek().word == word:
            self._at += 1
            parts.append(self._joined("and") if word == "or" else self._negated())
        return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))

    def _negated(self) -> Condition:
        times = 0
        while self._peek().word == "not":
            self._at += 1
            times += 1
        condition = self._comparison()
        return Negation(condition) if times % 2 else condition

    def _comparison(self) -> Condition:
        if self._take_sign("("):
            inside = self._condition()
            if not self._take_sign(")"):
                raise self._refused("a bracket is not closed, or holds what is not understood", self._at)
            return inside
        first = self._at
        left = self._operand()
        token = self._peek()
        operator = _OPERATORS.get(token.text) if token.kind == "sign" else None
        if operator is None:
            if token.kind == "sign" and token.text in {"+", "-", "*", "/"}:
                raise self._refused("arithmetic", first)
            if isinstance(left, Field):
                return left  # a field by itself: true or not
            raise self._refused("a constant is no condition", first)
        self._at += 1
        right = self._operand()
        if self._peek().kind == "sign" and self._peek().text in {"+", "-", "*", "/"}:
            raise self._refused("arithmetic", first)
        return Comparison(operator, left, right)

    def _operand(self) -> Field | Constant:
        token = self._peek()
        match token.kind:
            case "number":
                self._at += 1
                return Constant(float(token.text) if any(c in token.text for c in ".eE") else int(token.text))
            case "text":
                self._at += 1
                return Constant(token.text[1:-1].replace("''", "'"))
            case "word" if token.text.lower() in {"true", "false"}:
                self._at += 1
                return Constant(token.text.lower() == "true")
            case "word" if not token.word:  # token.word: a keyword
                return self._field()
            case _:
                pass
        raise self._refused("not understood", self._at)

    def _field(self) -> Field:
        first = self._at
        token = self._peek()
        if token.kind not in {"word", "quoted"} or token.word:  # token.word: a keyword
            raise self._refused("a field is wanted", self._at)
        path: list[str | int] = [token.text.strip('"')]
        self._at += 1
        if self._peek().text == "(":
            raise self._refused("a function", first)
        while True:
            if self._take_sign("."):
                token = self._peek()
                if token.kind not in {"word", "quoted", "text"}:
                    raise self._refused("a field's name is wanted", self._at)
                path.append(token.text[1:-1] if token.kind in {"quoted", "text"} else token.text)
                self._at += 1
            elif self._take_sign("["):
                token = self._peek()
                if token.kind != "number" or not token.text.isdigit() or token.text == "0":
                    raise self._refused("an index that is no whole number above 0", self._at)
                path.append(int(token.text))
                self._at += 1
                if not self._take_sign("]"):
                    raise self._refused("a range of an array", first)
            else:
                break
        return Field(tuple(path), self._sql[self._tokens[first].start : self._tokens[self._at - 1].end])

    # --- tokens

    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _take_sign(self, sign: str) -> bool:
        if self._peek().kind == "sign" and self._peek().text == sign:
            self._at += 1
            return True
        return False

    def _expect_word(self, word: str) -> None:
        if self._peek().word != word:
            raise self._refused(f"{word.upper()} is wanted", self._at)
        self._at += 1

    def _refused(self, reason: str, at: int) -> SqlError:
        return SqlError(reason, _line(self._sql[self._tokens[at].start :]) or "(the end)")


def _tokens(text: str) -> list[_Token]:
    found = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SqlError("not understood", _line(text[at:]))
        assert match.lastgroup is not None
        if match.lastgroup != "space":
            found.append(_Token(match.lastgroup, match[0], at, match.end()))
        at = match.end()
    found.append(_Token("end", "", len(text), len(text)))
    return found


def _line(text: str) -> str:
    return " ".join(text.split())
