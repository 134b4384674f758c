"""Puts a report's page where it was asked for."""

from __future__ import annotations

__all__ = ["write_page"]

import os
from typing import TYPE_CHECKING

from config.errors import ConfigError
from streaming.report_page import render

if TYPE_CHECKING:
    from pathlib import Path

    from streaming.report_data import Report


def write_page(report: Report, path: Path) -> Path:
    """Writes the page whole, in the place of an older one; its absolute path. Raises ConfigError if that fails."""
    path = path.absolute()
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    text = render(report)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise ConfigError(
            f"The report cannot be written to {path} ({error.strerror}). Is that a folder you may write, with room?"
        ) from error
    return path
