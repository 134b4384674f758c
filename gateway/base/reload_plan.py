"""What is to be done about settings that were read again: all of it, the part that can be taken live, or nothing."""

from __future__ import annotations

__all__ = ["Plan", "Wish", "plan_reload"]

from dataclasses import dataclass
from typing import TYPE_CHECKING

from config.errors import ConfigError
from config.loading.live import Change, changes, only_live
from config.loading.load import check_relations

if TYPE_CHECKING:
    from config.loading.load import Loaded
    from config.settings import Settings


@dataclass(frozen=True, slots=True)
class Wish:
    """How a reload was asked for. ``number`` tells which one it was, 0 for a bare signal. ``partial``: take what can be
    taken when some has to wait for a restart. ``dry_run``: change nothing. ``rolling``: replace the workers instead."""

    number: int = 0
    partial: bool = False
    dry_run: bool = False
    rolling: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """``settings`` are to be in force afterwards. ``waiting`` are the changes among ``changes`` that need a restart."""

    settings: Settings
    changes: tuple[Change, ...]
    waiting: tuple[Change, ...]


def plan_reload(now: Settings, loaded: Loaded, wish: Wish) -> Plan:
    """Raises ConfigError when something has to wait and the wish is for all or nothing, or when what is left does not
    go together."""
    found = changes(now, loaded.settings, loaded.provenance)
    waiting = [change for change in found if change.effect == "restart"]
    if not waiting:
        return Plan(loaded.settings, tuple(found), ())
    if not wish.partial and not wish.dry_run:
        raise ConfigError(
            f"Nothing was changed: {_names(waiting)} cannot change while the workers run. Use "
            "`gateway restart --reload`, which replaces them one after the other, or `gateway reload --partial` for "
            "the rest of the changes."
        )
    settings = only_live(now, loaded.settings)
    check_relations(settings, loaded.provenance)
    return Plan(settings, tuple(found), tuple(waiting))


def _names(waiting: list[Change]) -> str:
    return ", ".join(dict.fromkeys(change.path for change in waiting))
