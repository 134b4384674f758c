"""Settings of one interceptor in a chain."""

__all__ = ["InterceptorSettings"]

import json
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, SecretStr, model_validator

from config.values.model import Table


class InterceptorSettings(Table):
    """Open: keys beyond the fields are the interceptor's own options, which it checks itself when the chain is made."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True, allow_inf_nan=False)

    use: Annotated[str, Field(min_length=1, max_length=200)]
    """Which interceptor: the name of a built-in one (`age_out`, `fields`, `filter`, `headers`, `json_schema`, `mask`,
    `sample`, `split`), of a plug-in's entry point, or `module:attribute`. Its own options stand beside this; see
    [interceptors.md](interceptors.md). Required."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] | None = None
    """What metrics and logs call it: 1 to 64 letters, digits, `.`, `_`, `-`. Unset: what `use` says. Give names to tell
    two of a kind apart."""

    on_error: Literal["pass", "drop", "dead_letter", "stop"] = "dead_letter"
    """Where a record goes on which the interceptor fails: `pass`, on as it was before; `drop`, nowhere, counted as
    filtered; `dead_letter`, its whole message to the dead letters; `stop`, nowhere, and the worker ends with
    its message unacknowledged. The default loses nothing and goes on."""

    secret: SecretStr | None = None
    """A secret the interceptor needs: the key of `mask`. Everything else in this table is shown by `gateway config
    show`."""

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        """Options travel as JSON from a supervisor to its workers; TOML knows dates as well."""
        for name, value in (self.model_extra or {}).items():
            try:
                json.dumps(value)
            except TypeError:
                raise ValueError(
                    f"{name}: an option is text, number, true or false, a list or a table of these"
                ) from None
        return self

    @property
    def label(self) -> str:
        """What metrics and logs call it."""
        return self.name or self.use

    @property
    def options(self) -> dict[str, Any]:
        """The interceptor's own options, the secret among them if given."""
        options = dict(self.model_extra or {})
        if self.secret is not None:
            options["secret"] = self.secret
        return options
