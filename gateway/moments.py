"""Moments as all that the gateway says has them: UTC, to the second."""

from __future__ import annotations

__all__ = ["moment"]

import time


def moment(unix_s: float) -> str:
    """``2026-11-21T03:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
