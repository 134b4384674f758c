"""``fields``: renames, removes and adds fields of a JSON value, in that order."""

from collections.abc import Callable
from typing import Any

from pydantic import Field

from bridge.intercept.paths import MISSING, parse_path
from bridge.interceptors import Context, Interceptor
from bridge.message import MessageView
from bridge.record import Record
from bridge.routing.template import MissingValue
from config.values.model import Table


class FieldOptions(Table):
    rename: dict[str, str] = Field(default={})  # path to path
    remove: tuple[str, ...] = ()  # paths, "*" allowed
    add: dict[str, Any] = Field(default={})  # path to value; a text is a ${…} template


class Fields(Interceptor):
    """Changes fields. An added field replaces an existing one; a template without a value adds none."""

    Options = FieldOptions

    def configure(self, options: FieldOptions, context: Context) -> None:
        if not (options.rename or options.remove or options.add):
            raise ValueError("nothing to do: give rename, remove or add")
        self._rename = [(parse_path(old, "rename"), parse_path(new, "rename")) for old, new in options.rename.items()]
        self._remove = [parse_path(text, "remove", wildcards=True) for text in options.remove]
        self._add = [(parse_path(text, "add"), _maker(value, context)) for text, value in options.add.items()]

    def on_send(self, record: Record) -> Record:
        """The record with fields renamed, then removed, then added. An added value that is missing is left out."""
        document = before = record.json()
        for old, new in self._rename:
            value = old.get(document)
            if value is not MISSING:
                document = new.put(old.change(document, _removed), value)
        for path in self._remove:
            document = path.change(document, _removed)
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


def _removed(_: Any) -> Any:
    return MISSING
