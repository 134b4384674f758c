"""``filter``: keeps messages for which an expression is true."""

from typing import Annotated, Literal

from pydantic import Field

from bridge.intercept.expression import Expression, MissingFieldError
from bridge.interceptors import Context, Drop, Interceptor
from bridge.record import Record
from config.values.model import Table


class FilterOptions(Table):
    expression: Annotated[str, Field(min_length=1, max_length=10_000)]
    missing: Literal["error", "keep", "drop"] = "error"  # for a message without a field that the expression reads
    reason: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = (
        "filter"  # the reason in the count of dropped messages
    )


class Filter(Interceptor):
    """Keeps records for which the expression is true (in Python's sense) and drops the others."""

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
        """The record if the expression is true, else its drop. A missing field counts as ``missing`` says."""
        try:
            return record if self._evaluate(record) else self._drop
        except MissingFieldError:
            if self._missing == "error":
                raise
            return record if self._missing == "keep" else self._drop
