"""Settings of one interceptor in a chain."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, SecretStr, model_validator

from config.values.model import Table


class InterceptorSettings(Table):
    """Keys beyond the fields are the interceptor's own options. The interceptor checks them when the chain is built."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True, allow_inf_nan=False)

    use: Annotated[str, Field(min_length=1, max_length=200)]
    """A built-in interceptor (`age_out`, `fields`, `filter`, `headers`, `json_schema`, `mask`, `sample`, `split`), the
    name of a plug-in's entry point, or `module:attribute`. Its options stand beside this key
    ([interceptors.md](interceptors.md))."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] | None = None
    """Name in metrics and logs: 1 to 64 letters, digits, `.`, `_`, `-`. Unset: `use`."""

    on_error: Literal["pass", "drop", "dead_letter", "stop"] = "dead_letter"
    """What happens to a record on which the interceptor fails. `pass`: it continues unchanged. `drop`: it is counted as
    filtered. `dead_letter`: its whole message becomes a dead letter. `stop`: the worker ends, and the message stays
    unacknowledged."""

    secret: SecretStr | None = None
    """A secret of the interceptor, such as the key of `mask`. `gateway config show` shows every other key of this
    table."""

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
        return self.name or self.use

    @property
    def options(self) -> dict[str, Any]:
        """The interceptor's own options, with the secret if given."""
        options = dict(self.model_extra or {})
        if self.secret is not None:
            options["secret"] = self.secret
        return options
