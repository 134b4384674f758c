"""``fields``: renames, removes and adds fields of a JSON value, in that order."""

from __future__ import annotations

__all__ = ["FieldOptions", "Fields"]

from typing import TYPE_CHECKING, Any

from pydantic import Field

from bridge.intercept.paths import MISSING, Path, parse_path
from bridge.interceptors import Interceptor
from bridge.routing.template import MissingValue
from config.values.model import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.interceptors import Context
    from bridge.message import MessageView
    from bridge.record import Record


class FieldOptions(Table):
    rename: dict[str, str] = Field(default={})  # path to path
    remove: tuple[str, ...] = ()  # paths, "*" allowed
    add: dict[str, Any] = Field(default={})  # path to a value; a text is a ${…} template


class Fields(Interceptor):
    """Changes fields. One that is added replaces what is there; a template without a value adds none."""

    Options = FieldOptions

    def configure(self, options: FieldOptions, context: Context) -> None:
        if not (options.rename or options.remove or options.add):
            raise ValueError("nothing to do: give rename, remove or add")
        self._rename = [(_path("rename", old), _path("rename", new)) for old, new in options.rename.items()]
        self._remove = [_path("remove", text, wildcards=True) for text in options.remove]
        self._add: list[tuple[Path, Callable[[MessageView], Any]]] = []
        for text, value in options.add.items():
            self._add.append((_path("add", text), _maker(value, context)))

    def on_send(self, record: Record) -> Record:
        document = before = record.json()
        for old, new in self._rename:
            value = old.get(document)
            if value is not MISSING:
                document = new.put(old.change(document, _nothing), value)
        for path in self._remove:
            document = path.change(document, _nothing)
        for path, make in self._add:
            try:
                document = path.put(document, make(record.message))
            except MissingValue:
                continue
        return record if document is before else record.with_json(document)


def _maker(value: Any, context: Context) -> Callable[[MessageView], Any]:
    if not isinstance(value, str):
        return lambda _: value
    render = context.template(value).render
    return lambda view: render(view).decode(errors="replace")


def _path(option: str, text: str, *, wildcards: bool = False) -> Path:
    try:
        return parse_path(text, wildcards=wildcards)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _nothing(_: Any) -> Any:
    return MISSING
