"""``gateway auth``: the service that EMQX asks who may connect, publish and subscribe, and its database.

Each command is a module of ``gateway.cli.access``, which imports its parts when it runs.
"""

import importlib
import importlib.util
from typing import Any

_COMMANDS = ("serve", "init", "user", "acl", "ban", "tenant", "forget", "explain", "audit")


def add_parser(commands: Any) -> None:
    actions = commands.group(
        "auth",
        "the service that EMQX asks who may do what",
        "The service that EMQX asks who may connect, publish and subscribe, and its users and rules.",
    )
    for name in _COMMANDS:
        module = f"gateway.cli.access.{name}"
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module).add_parser(actions)
