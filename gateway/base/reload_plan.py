"""Which changed settings a reload applies: all of them, those that need no restart, or none."""

from dataclasses import dataclass

from config.errors import ConfigError
from config.loading.live import Change, changes, only_live, remedy
from config.loading.load import Loaded, check_relations
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class Wish:
    """How a reload was requested. ``number``: of the request, 0 for a signal without one. ``partial``: apply the
    changes that need no restart even if others do. ``dry_run``: change nothing. ``rolling``: replace the workers
    instead."""

    number: int = 0
    partial: bool = False
    dry_run: bool = False
    rolling: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """``settings`` are in use afterwards. ``waiting`` are the changes among ``changes`` that need a restart."""

    settings: Settings
    changes: tuple[Change, ...]
    waiting: tuple[Change, ...]


def plan_reload(now: Settings, loaded: Loaded, wish: Wish) -> Plan:
    """Raises ConfigError if a change needs a restart and the wish is for all or nothing, or if the remaining settings
    contradict each other."""
    found = changes(now, loaded.settings, loaded.provenance)
    waiting = [change for change in found if change.effect == "restart"]
    if not waiting:
        return Plan(loaded.settings, tuple(found), ())
    if not wish.partial and not wish.dry_run:
        names = ", ".join(dict.fromkeys(change.path for change in waiting))
        raise ConfigError(
            f"Nothing was changed: {names} cannot change while the workers run. That takes "
            f"{remedy(waiting, now.workers)}; `gateway reload --partial` takes the rest of the changes."
        )
    settings = only_live(now, loaded.settings)
    check_relations(settings, loaded.provenance)
    return Plan(settings, tuple(found), tuple(waiting))
