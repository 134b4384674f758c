"""Reads a secret from its file before each use, so that a rotated secret needs no restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from config.values.secret_files import FileSecret

if TYPE_CHECKING:
    import re

    from pydantic import SecretStr

log = structlog.get_logger("credentials")


def fresh(secret: SecretStr, setting: str, form: re.Pattern[str] | None = None) -> str:
    """The text of ``secret``, read again if it stands in a file. ``setting`` is its name for the log ("mqtt.password").

    While the file cannot be read (it is being replaced, its volume is missing), or has a secret of another ``form``,
    the last text is used. Blocks for one small file; never raises.
    """
    if isinstance(secret, FileSecret):
        try:
            if secret.reread(form):
                log.info("secret_file_changed", setting=setting)
        except ValueError as error:
            log.warning(
                "secret_file_not_read",
                setting=setting,
                problem=str(error),
                consequence="the secret that was read last is shown",
                repeat_key=setting,
            )
    return secret.get_secret_value()
