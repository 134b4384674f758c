"""``filter``: lets through what an expression is true for."""

from __future__ import annotations

__all__ = ["Filter", "FilterOptions"]

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from bridge.intercept.expression import Expression, MissingFieldError
from bridge.interceptors import Drop, Interceptor
from config.values.model import Table

if TYPE_CHECKING:
    from bridge.interceptors import Context
    from bridge.record import Record


class FilterOptions(Table):
    expression: Annotated[str, Field(min_length=1, max_length=10_000)]
    missing: Literal["error", "keep", "drop"] = "error"  # for a message without a field that the expression reads
    reason: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = "filter"  # what a dropped message is counted as


class Filter(Interceptor):
    """Keeps records for which the expression is true (as Python takes truth), drops the others."""

    Options = FilterOptions

    def configure(self, options: FilterOptions, context: Context) -> None:
        del context
        try:
            self._evaluate = Expression(options.expression).evaluate
        except ValueError as error:
            raise ValueError(f"expression: {error}") from None
        self._missing = options.missing
        self._drop = Drop(options.reason)
        self.drop_reasons = (options.reason,)

    def on_send(self, record: Record) -> Record | Drop:
        try:
            return record if self._evaluate(record) else self._drop
        except MissingFieldError:
            if self._missing == "error":
                raise
            return record if self._missing == "keep" else self._drop
