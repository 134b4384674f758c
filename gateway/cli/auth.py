"""``gateway auth``: the service that EMQX asks who may connect, publish and subscribe, and its database.

Each command is a module of ``gateway.cli.access``, which imports its parts when it runs.
"""

import importlib
import importlib.util
from typing import Any

_COMMANDS = ("serve", "init", "user", "acl", "ban", "tenant", "forget", "explain", "audit")


def add_parser(commands: Any) -> None:
    """Add ``gateway auth`` to the command's parser."""
    actions = commands.add_parser(
        "auth",
        help="the service that EMQX asks who may do what",
        description="The service that EMQX asks who may connect, publish and subscribe, and its users and rules.",
    ).add_subparsers(metavar="COMMAND", required=True)
    for name in _COMMANDS:
        module = f"gateway.cli.access.{name}"
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module).add_parser(actions)
