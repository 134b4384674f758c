"""``gateway auth serve``: the service itself."""

import argparse

from config.errors import ExitStatus
from gateway.cli.parser import Commands


def add_parser(commands: Commands) -> None:
    statuses = (
        "exit status: 1 when the database cannot be used, 69 when a port is taken, 78 for bad settings or missing "
        "packages, else as the signal says."
    )
    commands.verb("serve", _run, epilog=statuses, json="")


def _run(arguments: argparse.Namespace) -> int:
    """Answer EMQX's questions about logins and topics until stopped. SIGTERM finishes open answers, a second signal
    ends the service at once. Changes of users, rules and bans need no restart."""
    from gateway.base.process import memory

    memory.keep_heap_small()
    from config.loading.load import load
    from gateway.auth_service.requirements import require_servable

    loaded = load(arguments.config)
    require_servable(loaded)
    import asyncio

    import structlog

    from gateway.base import logs

    settings = loaded.settings
    logs.configure(settings.log, context={"instance": settings.instance, "service": "auth"})
    log = structlog.get_logger("auth")
    for warning in filter(None, (loaded.all_defaults, *loaded.warnings)):
        log.warning("settings.doubtful", warning=warning)
    from gateway.auth_service.process import run_auth

    ended = asyncio.run(run_auth(settings))
    logs.finish()
    ended.reraise()
    return ExitStatus.OK
