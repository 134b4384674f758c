"""``gateway reload``: gives changed settings to the running gateway, without a disconnect."""

import argparse
import signal
import time
from typing import Final

from config.errors import ConfigError, ExitStatus
from config.loading.live import Change, remedy
from config.loading.load import Loaded, load
from gateway.base.reload_plan import Wish
from gateway.base.reports import Outcome
from gateway.cli.config import check_run
from gateway.cli.parser import Commands, flag
from gateway.cli.table import mention, print_json, say, tell
from gateway.supervisor.running import find_running

_EPILOG: Final = """\
live: routes, interceptors, flow, dead_letter, log.level, http.overdue_after, http.token, shutdown_timeout, emqx,
canary, spool.after, .max_bytes and .replay_max_bytes_per_second, the user and password of mqtt and kafka.sasl,
kafka.topics (how topics are made).
Everything else needs a restart, and the answer says which. Environment variables are those of the gateway's start.

examples:
  gateway reload --dry-run                show what would change, and whether the gateway could take it
  gateway reload                          all or nothing
  gateway reload --partial                take what can be taken, and name what needs a restart

exit status: 0 taken (or nothing to take), 78 bad settings or settings that need a restart, and nothing was changed, 4
no gateway runs here, 5 a part was taken, the rest needs a restart, 1 a worker, Kafka or the MQTT broker failed or
refused, and nothing was changed
"""


def add_parser(commands: Commands) -> None:
    parser = commands.verb("reload", _run, epilog=_EPILOG)
    flag(parser, "--dry-run", "change nothing: show the differences and whether they could be taken")
    flag(parser, "--partial", "take what can be taken live when other changes need a restart")


def _run(arguments: argparse.Namespace) -> int:
    """Checks the settings here. Then the running gateway reads them again, and its workers take the changes: routes,
    interceptors, limits and credentials. No MQTT session is disconnected and no message lost; earlier messages are
    written first. All workers take the settings, or none does. Settings that need a restart are named; then nothing is
    changed unless --partial is given. docs/reload.md has the details.
    """
    loaded = load(arguments.config)
    if problems := check_run(loaded)[0]:
        raise ConfigError(*problems)
    running = find_running(loaded.settings)
    wish = Wish(time.time_ns(), partial=arguments.partial, dry_run=arguments.dry_run)
    outcome = running.command(signal.SIGHUP, "reload", wish)
    status = int(outcome.details.get("status", ExitStatus.OK if outcome.ok else ExitStatus.FAILED))
    if arguments.json:
        document = {"ok": outcome.ok, "sentence": outcome.sentence, **outcome.details, "status": status}
        print_json(document)
        return status
    _show(outcome, loaded)
    return status


def _show(outcome: Outcome, loaded: Loaded) -> None:
    details = outcome.details
    here = None if loaded.file is None else str(loaded.file.absolute())
    if details.get("file") != here and "file" in details:
        mention(
            f"the running gateway reads {details['file'] or 'no file'}, while {here or 'no file'} was checked here."
        )
    changes = [Change(**document) for document in details.get("changes", ())]
    for change in changes:
        mark = {"live": " ", "restart": "!", "other": "-"}[change.effect]
        tell(f"{mark} {change}")
    if waiting := [one for one in changes if one.effect == "restart"]:
        say(f"! needs {remedy(waiting, loaded.settings.workers)}")
    if any(one.effect == "other" for one in changes):
        say("- is no part of the running gateway")
    for remark in details.get("remarks", ()):
        tell(f"note: {remark}")
    if outcome.ok:
        tell(outcome.sentence)
    else:
        mention(outcome.sentence)
