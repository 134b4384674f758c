"""What a reload of the settings leaves behind: the supervisor's where there is one, else the worker's own."""

from __future__ import annotations

__all__ = ["LAST_RELOAD", "RELOAD_SUCCESS"]

from gateway.base.instruments import gauge

RELOAD_SUCCESS = gauge(
    "gateway_config_reload_success",
    "1 unless the last reload of the settings failed, so that older ones are in use: then 0.",
    "the settings that the log's reload_failed names",
    unit="success",
)
LAST_RELOAD = gauge(
    "gateway_config_last_reload_timestamp_seconds",
    "When the settings in use were read, in Unix time.",
    "none",
    unit="seconds",
)
