"""``gateway auth``: the service that EMQX asks who may connect, publish and subscribe, and its database."""

from gateway.cli.parser import Commands

_COMMANDS = {  # modules of gateway.cli.access
    "serve": "answer EMQX until stopped",
    "init": "make the database, first users and secrets, once",
    "user": "add, change, list, import and export users",
    "acl": "add, list, try, import and export access rules",
    "ban": "ban clients, and lift bans",
    "tenant": "add, change, list and remove tenants",
    "forget": "erase a device: its user, rules, bans, its name in the audit",
    "explain": "explain the decision on a client and a topic",
    "audit": "list who changed what",
}


def add_parser(commands: Commands) -> None:
    description = "The service that EMQX asks who may connect, publish and subscribe, and its users and rules."
    actions = commands.group("auth", description)
    for module, text in _COMMANDS.items():
        actions.later(f"gateway.cli.access.{module}", text)
