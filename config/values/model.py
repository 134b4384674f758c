"""The base of every table of settings."""

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table of settings: frozen, no unknown keys, and no rejected value in pydantic's own messages.

    The text under each field is its documentation; ``config.schema`` reads it from the source for the
    reference. ``use_attribute_docstrings`` would read it at every start of every worker.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)
