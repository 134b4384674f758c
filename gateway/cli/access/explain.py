"""``gateway auth explain``: the decision on a client and a topic, with its reasons."""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import cast

from auth.hashing import Hasher
from auth.logins.chain import make_chain
from auth.logins.explain import Explanation, TrustingHasher, explain
from auth.logins.lockouts import LockedNow
from auth.model import Allow
from auth.store.store import Store
from config.errors import ExitStatus
from config.prose import fitted
from config.settings import Settings
from gateway.auth_service.operator import LOCK_OUTS_SHOWN
from gateway.cli.access.common import add_attributes, add_client, attributes, database, login_of, password_in
from gateway.cli.access.explain_text import as_json, as_text
from gateway.cli.arguments import run_quietly
from gateway.cli.parser import Commands, flag, repeated
from gateway.cli.table import coloured
from gateway.http.asking import ask

_ASK_S = 2.0  # the service's operator port answers in a millisecond
_EPILOG = """\
examples:
  gateway auth explain --username ada --clientid press-7 --topic plant/press-7/state --action publish
  gateway auth explain --clientid press-7 --topic 'cmd/press-7/#' --action subscribe --json
"""


def add_parser(commands: Commands) -> None:
    parser = commands.verb("explain", _run, epilog=_EPILOG)
    parser.set_defaults(usage=parser.error)
    client = parser.add_argument_group("client")
    add_client(client)
    client.add_argument(
        "--password-file", type=Path, metavar="FILE", help="its first line is the password or token; - is the input"
    )
    known = parser.add_argument_group(
        "known facts", "For a client whose source cannot be asked, or to try other values."
    )
    known.add_argument("--tenant", default="", metavar="NAME")
    repeated(known, "--group", "NAME", "may be given several times")
    add_attributes(known)
    access = parser.add_argument_group("request")
    access.add_argument("--topic", metavar="TOPIC", help="a topic, or the filter of a subscription")
    access.add_argument("--action", choices=("publish", "subscribe"), help="needed with --topic")
    access.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="default: 0")
    flag(access, "--retain", "it publishes a retained message")


def _run(arguments: argparse.Namespace) -> int:
    """Says what the service decides about a client, and why: the source of auth.chain that knows it, obstacles, and the
    answer to EMQX at its login. With --topic also the rule that decides, and why earlier rules do not.

    The question changes and counts nothing. Without a password, each source answers as for the right password. Tokens
    and LDAP need --password-file.
    """
    if not (arguments.username or arguments.clientid or arguments.common_name or arguments.address):
        arguments.usage("say which client: --username, --clientid, --common-name or --address")
    if bool(arguments.topic) != bool(arguments.action):
        arguments.usage("--topic and --action go together")
    with database(arguments) as (settings, store):
        explanation = run_quietly(_explain(settings, store, arguments), settings.log)
    if arguments.json:
        print(as_json(explanation))
    else:
        print(fitted(as_text(explanation, settings.auth, color=coloured(sys.stdout)), sys.stdout))
    return ExitStatus.OK


async def _explain(settings: Settings, store: Store, arguments: argparse.Namespace) -> Explanation:
    request = login_of(arguments, "" if arguments.password_file is None else password_in(arguments.password_file))
    access = None
    if arguments.topic is not None:
        access = (arguments.action, arguments.topic, arguments.qos, arguments.retain)
    # TrustingHasher: without a password, every password is taken for right.
    hasher = Hasher(settings.auth.hashing, store.device_keys())
    try:
        chain = make_chain(settings.auth, store, hasher if request.password else cast("Hasher", TrustingHasher()))
        await chain.start()
        try:
            lock_outs = await asyncio.to_thread(_lock_outs, settings)
            return await explain(
                settings.auth,
                store,
                chain,
                request,
                access=access,
                known=_known(arguments),
                lock_outs=lock_outs,
                more_lock_outs=lock_outs is not None and len(lock_outs) >= LOCK_OUTS_SHOWN,
                now_s=time.time(),
            )
        finally:
            await chain.close()
    finally:
        hasher.close()


def _lock_outs(settings: Settings) -> list[LockedNow] | None:
    """The lock-outs of the running service; None when no service reports them."""
    auth = settings.auth
    port = settings.http.model_copy(update={"host": auth.operator_host, "port": auth.operator_port})
    try:
        _, body = ask(port, "/status", timeout_s=_ASK_S)
        return [
            LockedNow(one["kind"], one["name"], one["address"], one["seconds"] * 1_000_000_000)
            for one in json.loads(body)["lock_outs"]
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # no service, another program's port, or a missing token


def _known(arguments: argparse.Namespace) -> Allow | None:
    given = attributes(arguments.attributes)
    if not (arguments.tenant or arguments.group or given):
        return None
    return Allow(source="", tenant=arguments.tenant, groups=frozenset(arguments.group), attributes=given)
