"""The command line: a module for each command, and what they share.

access/             the commands of ``gateway auth``, and what they share
dead_letters/       what ``gateway dlq`` and its neighbours share
acknowledge.py      ``gateway acknowledge``: somebody has seen that the broker lost sessions, so the problem ends
admin_common.py     what the administrating commands share: their options, the connection, asking before a change
arguments.py        what several commands ask for in the same words: the settings file, numbers, moments
auth.py             ``gateway auth``: the service that EMQX asks who may connect, publish and subscribe
cluster.py          ``gateway cluster``: Kafka's brokers, its controller, and what moves between them
compare.py          ``gateway compare``: two Kafka topics side by side, the old bridge's and ours
config.py           ``gateway config``: check the settings, show them with their origins, print the reference
demo.py             ``gateway demo``: the whole path on this machine, with an account of every message at the end
dev.py              ``gateway dev``: a real Kafka and a real MQTT broker on this machine
dlq.py              ``gateway dlq``: look at dead letters, and replay them through the routes of today
doctor.py           ``gateway doctor``: what is wrong between MQTT, this machine and Kafka, and what to do about it
explain.py          ``gateway explain``: what would become of a message, step by step
explain_text.py     an explanation for people: one section for each station of the way
groups.py           ``gateway groups``: consumer groups, where they are kept, who is in them
identity.py         ``gateway identity``: whose a data directory is, and taking one over
import_.py          ``gateway import``: another bridge's configuration as settings of this one
init.py             ``gateway init``: a settings file to begin with
leaders.py          ``gateway leaders``: who leads how many partitions
main.py             the ``gateway`` command: one parser
parser.py           the parser of every command: help that fits the terminal
reload.py           ``gateway reload``: the running gateway takes changed settings, and no session is disconnected
restart.py          ``gateway restart``: replace the running workers one after the other
retire.py           ``gateway retire``: stop a running gateway for good
routes.py           ``gateway routes``: what the routes are, and what in them may not be meant
run.py              ``gateway run``: the bridge itself
simulate.py         ``gateway simulate``: devices that publish to the MQTT broker, and the account of what they did
spool.py            ``gateway spool``: what waits on this machine's disk for Kafka, and how to take it elsewhere
spool_file.py       the file of ``gateway spool export``: JSON lines, one batch each
stream.py           ``gateway stream``: the Spark jobs
stream_files.py     ``gateway stream status`` and ``gateway stream reset``: done with the files themselves
table.py            tables, severity words and JSON for commands: aligned text for people, one object for machines
tail.py             ``gateway tail``: the records that reach Kafka, as they arrive
tail_selection.py   which records ``gateway tail`` shows
tail_text.py        records as ``gateway tail`` shows them: a line each
topics.py           ``gateway topics``: Kafka's topics as they are, and as the settings want them
trial.py            ``gateway trial``: marked messages through your own brokers, and what became of them
verify.py           ``gateway verify``: does Kafka have everything that it acknowledged to this gateway?
"""

import importlib.util
from pathlib import Path


def _look_for_others() -> None:
    """Raise SystemExit where another package hides one of ours: their names are as common as ``config``."""
    ours = Path(__file__).parents[2]
    for name in ("auth", "bridge", "config", "streaming"):
        spec = importlib.util.find_spec(name)
        place = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
        if place is not None and Path(place).parent != ours / name:
            raise SystemExit(
                f"Another Python package named {name} ({place}) hides the gateway's own. Install the gateway in an "
                "environment of its own (python3 -m venv), and look what PYTHONPATH and the current folder bring in."
            )


_look_for_others()
