"""Places in JSON documents, written with dots: ``reading.values.0``, ``users.*.name``.

A step is the name of an object's field, or the number of an array's element from 0; ``*`` is every field or element.
Documents are never changed: a write copies the objects on its path and shares the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MISSING: Final[Any] = object()
"""No value at that place. As the result of a change: remove the value."""

_LONGEST_INDEX: Final = 6  # digits; no message has a million elements


def parse_path(text: str, option: str = "", *, wildcards: bool = False) -> Path:
    """Read a path. Raises ValueError with a sentence that begins with ``option``."""
    steps = text.split(".")
    at = f"{option}: " if option else ""
    if "" in steps:
        raise ValueError(f"{at}{text!r} is no path: it names fields with dots between them, as in 'reading.value'")
    if "*" in steps and not wildcards:
        raise ValueError(f"{at}{text!r} names several places with '*'; one is wanted here")
    return Path(text, tuple(steps))


class Path:
    """A place, or with ``*`` several."""

    __slots__ = ("_steps", "text")

    def __init__(self, text: str, steps: tuple[str, ...]) -> None:
        self.text = text
        self._steps = steps

    def get(self, document: Any) -> Any:
        """The value, or MISSING. For paths without ``*``."""
        for step in self._steps:
            if type(document) is dict:
                document = document.get(step, MISSING)
                if document is MISSING:
                    return MISSING
            elif type(document) is list:
                index = _index(step, document)
                if index is None:
                    return MISSING
                document = document[index]
            else:
                return MISSING
        return document

    def put(self, document: Any, value: Any) -> Any:
        """A document with ``value`` there; missing objects on the path are made. Raises ValueError for a path through a
        value without fields, or beyond the end of an array."""
        return self._put(document, 0, value)

    def _put(self, document: Any, depth: int, value: Any) -> Any:
        """A copy of ``document`` with the value at the path's steps from ``depth`` on. Raises ValueError."""
        if depth == len(self._steps):
            return value
        step = self._steps[depth]
        if document is MISSING:
            document = {}
        if type(document) is dict:
            return {**document, step: self._put(document.get(step, MISSING), depth + 1, value)}
        if type(document) is list and (index := _index(step, document)) is not None:
            return [*document[:index], self._put(document[index], depth + 1, value), *document[index + 1 :]]
        raise ValueError(f"{self.text!r} cannot be set: there is no field {step!r} in {_kind(document)}")

    def change(self, document: Any, make: Callable[[Any], Any]) -> Any:
        """A document with ``make(value)`` in place of the value, or without it if that is MISSING. The same document if
        there is no value."""
        return self._change(document, 0, make)

    def _change(self, document: Any, depth: int, make: Callable[[Any], Any]) -> Any:
        """A copy with ``make`` applied from step ``depth`` on (MISSING removes); the same object if unchanged."""
        if depth == len(self._steps):
            return make(document)
        step = self._steps[depth]
        if type(document) is dict:
            names = document.keys() if step == "*" else (step,) if step in document else ()
            changed: dict[str, Any] | None = None
            for name in names:
                before = document[name]
                after = self._change(before, depth + 1, make)
                if after is not before:
                    changed = dict(document) if changed is None else changed
                    if after is MISSING:
                        del changed[name]
                    else:
                        changed[name] = after
            return document if changed is None else changed
        if type(document) is list:
            index = None if step == "*" else _index(step, document)
            if step != "*" and index is None:
                return document
            elements = [
                self._change(one, depth + 1, make) if index is None or number == index else one
                for number, one in enumerate(document)
            ]
            if all(after is before for after, before in zip(elements, document, strict=True)):
                return document
            return [one for one in elements if one is not MISSING]
        return document

    def __repr__(self) -> str:
        return f"Path({self.text!r})"


def _index(step: str, array: list[Any]) -> int | None:
    if step.isascii() and step.isdigit() and len(step) <= _LONGEST_INDEX and int(step) < len(array):
        return int(step)
    return None


def _kind(document: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(document), "a number")
