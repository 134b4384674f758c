"""``headers``: renames, removes and adds record headers, in that order."""

from pydantic import Field

from bridge.interceptors import Context, Interceptor
from bridge.record import Record
from bridge.routing.template import MissingValue
from bridge.wire import RESERVED_PREFIXES
from config.values.model import Table


class HeaderOptions(Table):
    rename: dict[str, str] = Field(default={})  # old name to new
    remove: tuple[str, ...] = ()  # names; "x*" removes all that begin with x
    add: dict[str, str] = Field(default={})  # name to a ${…} template


class Headers(Interceptor):
    """Changes headers. An added header replaces those of its name; a template without a value adds none."""

    Options = HeaderOptions

    def configure(self, options: HeaderOptions, context: Context) -> None:
        if not (options.rename or options.remove or options.add):
            raise ValueError("nothing to do: give rename, remove or add")
        for option, names in (("rename", options.rename.values()), ("add", options.add)):
            for name in names:
                if not name or name.startswith(RESERVED_PREFIXES):
                    why = "the gateway's own" if name else "empty"
                    raise ValueError(
                        f"{option}: the name {name!r} is {why}; choose one that does not begin with "
                        f"{', '.join(RESERVED_PREFIXES)}"
                    )
        self._rename = dict(options.rename)
        self._remove = frozenset(name for name in options.remove if not name.endswith("*"))
        self._remove_prefixes = tuple(name[:-1] for name in options.remove if name.endswith("*"))
        self._add = [(name, context.template(text).render) for name, text in options.add.items()]
        self._replaced = frozenset(options.add)

    def on_send(self, record: Record) -> Record:
        """The record with headers renamed, then removed, and added; an added one replaces those of its name."""
        rename, remove, prefixes = self._rename, self._remove, self._remove_prefixes
        added: list[tuple[str, bytes | None]] = []
        for name, render in self._add:
            try:
                added.append((name, render(record.message)))
            except MissingValue:
                continue
        replaced = {name for name, _ in added} if self._replaced else frozenset()
        headers = [
            (name, value)
            for name, value in ((rename.get(name, name), value) for name, value in record.headers)
            if name not in remove and not (prefixes and name.startswith(prefixes)) and name not in replaced
        ]
        return record.replace(headers=headers + added)
