"""Expressions over a message: topic, properties, JSON fields; compiled once, evaluated for every record.

The language is Python's, restricted by RestrictedPython: no assignment, no import, no name that begins with an
underscore, and only the attributes allowed here. An expression reads only the values of its message.

Measured for ``json.temperature > 20 and json.seq > 0``, in µs per evaluation on one core: RestrictedPython 0.4,
evalidate 0.5, zen-engine 2.7, simpleeval 3.1, cel-expr-python 7.4, rule-engine 8.2, jmespath 9, jinja2 13,
common-expression-language 18, cel-python 280. The CEL libraries copy each document into their own types first. A whole
message may take 6 µs.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from RestrictedPython.compile import compile_restricted_eval
from RestrictedPython.transformer import RestrictingNodeTransformer

from bridge.errors import BridgeError
from bridge.intercept.paths import MISSING, Path, parse_path
from bridge.routing.filter_trie import FilterTrie
from bridge.routing.filters import validate_filter
from config.errors import GatewayError
from config.values.patterns import Pattern, compile_pattern

if TYPE_CHECKING:
    from bridge.record import Record


_MOST_DIGITS: Final = 5_000
"""Of the zeros that ``round`` puts in place of digits; a message could ask for 10**9, which stops the worker."""


class ExpressionError(ValueError):
    """An expression that cannot be compiled."""


class MissingFieldError(BridgeError):
    """A message lacks a field that the expression reads."""


_TEXT_METHODS: Final = frozenset(
    {
        "casefold", "count", "endswith", "find", "isalpha", "isdigit", "lower", "lstrip", "removeprefix",
        "removesuffix", "rstrip", "split", "startswith", "strip", "upper",
    }
)  # fmt: skip

_VALUES: Final[dict[str, Callable[[Record], Any]]] = {
    "json": lambda record: record.json(),
    "topic": lambda record: record.message.topic,
    "qos": lambda record: record.message.qos,
    "retain": lambda record: record.message.retain,
    "properties": lambda record: dict(reversed(record.message.properties.user)),  # of repeated ones the first
    "content_type": lambda record: record.message.properties.content_type or "",
    "response_topic": lambda record: record.message.properties.response_topic or "",
    "received_ms": lambda record: record.message.received_ms,
    "size": lambda record: len(record.value or b""),
    "kafka_topic": lambda record: record.topic,
    "key": lambda record: (record.key or b"").decode(errors="replace"),
    "headers": lambda record: {name: (value or b"").decode(errors="replace") for name, value in record.headers},
}
"""The values that an expression may use. Only those that it uses are read."""


class Expression:
    """A compiled expression. ``evaluate`` gives its value for a record.

    ``evaluate`` raises MissingFieldError, NotJsonError, or Python's own errors (TypeError for ``"a" > 1``)."""

    __slots__ = ("evaluate", "names", "text")

    def __init__(self, text: str) -> None:
        """Raises ExpressionError with a sentence."""
        self.text = text.strip()
        names = _check(self.text)
        self.names = tuple(name for name in _VALUES if name in names)  # its values, in the order of the arguments
        # In a function its names are local variables, which cost a third of a look-up in a mapping. The text was
        # compiled alone before, so no bracket in it can end the function early.
        code = compile_restricted_eval(f"lambda {', '.join(self.names)}: (\n{self.text}\n)", policy=_Policy).code
        assert code is not None
        function = eval(code, dict(_GLOBALS))  # noqa: S307 - what RestrictedPython has compiled
        self.evaluate: Callable[[Record], Any] = _bind(function, self.names)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def _bind(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[[Record], Any]:
    """A function that calls ``function`` with the named values of a record. It raises MissingFieldError."""
    if names == ("json",):  # the most frequent case, without a call in between

        def evaluate_json(record: Record) -> Any:
            try:
                return function(record.json())
            except KeyError as error:
                raise _missing(error) from None

        return evaluate_json
    readers = [_VALUES[name] for name in names]

    def evaluate(record: Record) -> Any:
        try:
            return function(*[read(record) for read in readers])
        except KeyError as error:
            raise _missing(error) from None

    return evaluate


def _missing(error: KeyError) -> MissingFieldError:
    return MissingFieldError(f"The message has no field {error.args[0]!r} there.")


def _check(text: str) -> set[str]:
    """The names a valid expression uses."""
    try:
        errors = compile_restricted_eval(text, policy=_Policy).errors
    except SyntaxError as error:  # one that only the compiler itself finds, such as a yield
        errors = (str(error),)
    if errors:
        raise ExpressionError(f"{text!r} is no expression: {'; '.join(map(_plain, errors))}")
    tree = ast.parse(text, mode="eval")
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    used = {node.id for node in found if isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in found if isinstance(node.ctx, ast.Store)}
    unknown = sorted(used - bound - set(_VALUES) - set(_FUNCTIONS))
    if unknown:
        raise ExpressionError(
            f"{text!r} uses {', '.join(unknown)}, which is unknown; it may use the values "
            f"{', '.join(_VALUES)} and the functions {', '.join(sorted(_FUNCTIONS))}"
        )
    _check_constants(tree, text)
    return used


def _plain(error: str) -> str:
    """RestrictedPython's finding without the line number of a text that has one line."""
    return re.sub(r"^Line \d+: ", "", error)


def _check_constants(tree: ast.AST, text: str) -> None:
    """Check patterns, filters and paths at the start, not at the first message. Reports all that are wrong."""
    problems: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            check = _ARGUMENT_CHECKS.get(node.func.id)
            constant = node.args[1]
            if check is not None and isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                try:
                    check(constant.value)
                except (ValueError, GatewayError) as error:
                    problems.append(f"{node.func.id}: {error}")
    if problems:
        raise ExpressionError(f"{text!r}: {'; '.join(problems)}")


class _Policy(RestrictingNodeTransformer):
    """RestrictedPython's rules, and none of the operations whose time depends on a number in the message."""

    def visit_BinOp(self, node: ast.BinOp) -> Any:  # noqa: N802 - the visitor's own naming
        """RestrictedPython's: refuse ** and <<, and have * and % check that both sides are numbers."""
        if isinstance(node.op, ast.Pow | ast.LShift):
            self.error(node, "** and << are not allowed: a message could make them take for ever.")
        self.node_contents_visit(node)
        # "x" * 10**9 and "%*d" % (10**9, 1) would take a gigabyte, so both operators are for numbers only.
        guard = {ast.Mult: "_multiply_", ast.Mod: "_modulo_"}.get(type(node.op))
        if guard is None:
            return node
        call = ast.Call(ast.Name(guard, ast.Load()), [node.left, node.right], [])
        ast.copy_location(call, node)
        return ast.fix_missing_locations(call)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Any:  # noqa: N802
        if node.format_spec is not None:
            self.error(node, "A format is not allowed: its width could be anything.")
        return self.node_contents_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:  # noqa: N802
        """RestrictedPython's: ``json.name`` reads a field directly; any other attribute is guarded."""
        base = node.value
        if isinstance(base, ast.Name) and base.id == "json" and not node.attr.startswith("_"):
            # A field of the document itself: indexing takes a fifth of the time of a guarded access.
            field = ast.Subscript(base, ast.Constant(node.attr), node.ctx)
            ast.copy_location(field, node)
            ast.fix_missing_locations(field)
            self.used_names[base.id] = True
            return field
        return super().visit_Attribute(node)


# --- what an expression may call ---


def _attribute(value: Any, name: str) -> Any:
    """``json.temperature``: a field of an object, or an allowed method of a text."""
    if type(value) is dict:
        return value[name]
    if type(value) is str and name in _TEXT_METHODS:
        return getattr(value, name)
    raise MissingFieldError(f"There is no field {name!r} in a value of type {type(value).__name__}.")


def _item(value: Any, key: Any) -> Any:
    """``json["unit price"]``, ``json.values[0]``. Raises MissingFieldError for an index, KeyError for a name."""
    try:
        return value[key]
    except IndexError:
        raise MissingFieldError(f"The message has no element {key!r} there.") from None


def _multiply(left: Any, right: Any) -> Any:
    _require_numbers(left, right)
    return left * right


def _modulo(left: Any, right: Any) -> Any:
    _require_numbers(left, right)
    return left % right


def _require_numbers(left: Any, right: Any) -> None:
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        raise TypeError(f"* and % are for numbers, not for {type(left).__name__} and {type(right).__name__}")


def _round(number: Any, digits: Any = None) -> Any:
    """``round``, in a time that does not depend on a number in the message."""
    return round(number, digits if digits is None else max(digits, -_MOST_DIGITS))


def _has(document: Any, path: str) -> bool:
    """Whether there is a value at the path; null counts."""
    return _path(path).get(document) is not MISSING


def _get(document: Any, path: str, default: Any = None) -> Any:
    """The value at the path, or ``default``."""
    found = _path(path).get(document)
    return default if found is MISSING else found


def _matches(text: str, pattern: str) -> bool:
    """Whether the regular expression is found in the text."""
    return _regex(pattern).found_in(text)


def _topic_matches(topic: str, text: str) -> bool:
    """Whether the MQTT filter matches the topic."""
    return _filter(text).first(topic) is not None


@functools.lru_cache(maxsize=256)
def _path(text: str) -> Path:
    return parse_path(text)


@functools.lru_cache(maxsize=256)
def _regex(pattern: str) -> Pattern:
    return compile_pattern(pattern)


@functools.lru_cache(maxsize=256)
def _filter(text: str) -> FilterTrie[bool]:
    """A trie of one filter, which tells whether it matches a topic. Raises FilterError."""
    validate_filter(text)
    trie: FilterTrie[bool] = FilterTrie()
    trie.add(text, True)
    return trie


_FUNCTIONS: Final[dict[str, Any]] = {
    "abs": abs, "all": all, "any": any, "bool": bool, "float": float, "get": _get, "has": _has, "int": int, "len": len,
    "matches": _matches, "max": max, "min": min, "round": _round, "str": str, "sum": sum,
    "topic_matches": _topic_matches,
}  # fmt: skip
_ARGUMENT_CHECKS: Final[dict[str, Callable[[str], object]]] = {
    "get": _path,
    "has": _path,
    "matches": _regex,
    "topic_matches": _filter,
}
_GLOBALS: Final[dict[str, Any]] = {
    "__builtins__": {},
    "_getattr_": _attribute,
    "_getitem_": _item,
    "_getiter_": iter,
    "_modulo_": _modulo,
    "_multiply_": _multiply,
    **_FUNCTIONS,
}
