"""The command line: a module for each command, and shared helpers.

access/            the commands of ``gateway auth``
dead_letters/      ``gateway dlq``
device_commands/   ``gateway command``: commands to devices, and what became of them
kafka/             commands that administer Kafka: topics, consumer groups, leaders and brokers
local/             commands for one machine: brokers, devices, and the demo with all of them
records/           commands about records: between MQTT and Kafka, on disk, and in Kafka
service/           commands that run or control a gateway
arguments.py       options and their values that several commands have: the settings file, numbers, moments
auth.py            ``gateway auth``: the service that EMQX asks who may connect, publish and subscribe
config.py          ``gateway config``: check the settings, show them with their origins, print the reference
doctor.py          ``gateway doctor``: problems between MQTT, this machine and Kafka, with their repair
import_.py         ``gateway import``: another bridge's configuration as settings of this one
init.py            ``gateway init``: a first settings file
main.py            the ``gateway`` command: finds the command's module, runs it, and ends with an error's status
parser.py          the class of all commands' parsers: help that fits the terminal, errors with their usage
routes.py          ``gateway routes``: the routes, and likely mistakes in them
stream.py          ``gateway stream``: the Spark jobs
stream_files.py    ``gateway stream status`` and ``gateway stream reset``, on the files themselves
table.py           tables, severity words and JSON for commands: aligned text for people, one object for machines
trial.py           ``gateway trial``: marked messages through your own brokers, and their account
"""

import importlib.util
from pathlib import Path


def _look_for_others() -> None:
    """Raise SystemExit when another package hides one of the gateway's, whose names are as common as ``config``."""
    ours = Path(__file__).parents[2]
    for name in ("auth", "bridge", "config", "streaming"):
        spec = importlib.util.find_spec(name)
        place = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        if place is not None and Path(place).parent != ours / name:
            raise SystemExit(
                f"Another Python package named {name} ({place}) hides the gateway's own. Install the gateway in an "
                "environment of its own (python3 -m venv), and check PYTHONPATH and the current folder."
            )


_look_for_others()
