"""``gateway identity``: the owner of a data directory, and its adoption."""

import argparse

from bridge.kafka.connection import cluster_id
from config.errors import ExitStatus, GatewayError
from config.settings import Settings
from gateway.cli.arguments import load_noted, run_quietly
from gateway.cli.parser import Commands
from gateway.cli.table import tell
from gateway.components.outward import kafka_login
from gateway.data_dir.adoption import adopt, describe, require_idle
from gateway.supervisor.place import find_supervisor


def add_parser(commands: Commands) -> None:
    actions = commands.group(
        "identity",
        "A data directory belongs to one instance, one place on a disk and one Kafka cluster. A copy would end the "
        "original's MQTT sessions and deliver its spool twice.",
    )
    actions.verb("show", _show, "print it", json="")
    actions.verb("adopt", _adopt, "make it this instance's", json="")


def _show(arguments: argparse.Namespace) -> int:
    """Print the identity of data_dir and of each worker slot."""
    settings = load_noted(arguments.config).settings
    tell("\n".join(describe(settings.data_dir, settings.instance)))
    return ExitStatus.OK


def _adopt(arguments: argparse.Namespace) -> int:
    """Give data_dir to the instance and the Kafka cluster of these settings, and print the changes. Use it after a
    restore from a backup, a move to another disk, or a change of the instance's name or of the cluster. Refused while a
    worker runs there."""
    settings = load_noted(arguments.config).settings
    supervisor = find_supervisor(settings.data_dir)
    if supervisor is not None:
        raise GatewayError(
            f"data_dir {settings.data_dir.absolute()} is in use: process {supervisor} runs its workers. Stop it."
        )
    require_idle(settings.data_dir)  # first, as Kafka may answer late
    cluster, problem = _cluster_id(settings)
    changes = adopt(settings.data_dir, settings.instance, cluster)
    for change in changes:
        tell(change)
    if problem is not None:
        tell(f"The recorded Kafka cluster was not changed, since Kafka gave no answer. {problem}")
        return ExitStatus.INCOMPLETE
    if not changes:
        tell(f"{settings.data_dir.absolute()} is instance {settings.instance}'s already: nothing to change.")
    return ExitStatus.OK


def _cluster_id(settings: Settings) -> tuple[str | None, str | None]:
    """The cluster's id; None with the reason if Kafka does not answer."""

    async def ask() -> str | None:
        async with kafka_login(settings.kafka) as login:
            return await cluster_id(settings.kafka, f"{settings.instance}-adopt", login)

    try:
        return run_quietly(ask(), settings.log), None
    except GatewayError as error:
        return None, str(error)
