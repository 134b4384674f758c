"""``gateway auth explain``: who decides about a client and a topic, and why the others did not."""

from __future__ import annotations

__all__ = ["add_parser"]

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus, GatewayError
from config.prose import fitted
from gateway.cli.arguments import add_config, add_json, load_noted

if TYPE_CHECKING:
    import argparse

    from auth.logins.explain import Explanation
    from auth.logins.protection import LockedNow
    from auth.model import Allow, LoginRequest
    from config.settings import Settings

_ASK_S = 2.0  # the service's operator port answers in a millisecond, or not at all
_DESCRIPTION = """\
Says what the service decides about a client, and why: who in auth.chain knows it, what stands in its way, what EMQX is
told when it logs in, and with --topic which rule decides and why those before it do not.

Nothing is changed or counted by asking. Without a password, each source says what it would say if the password were
right; tokens and LDAP cannot be asked so, and need --password-file.
"""
_EPILOG = """\
examples:
  gateway auth explain --username ada --clientid press-7 --topic plant/press-7/state --action publish
  gateway auth explain --clientid press-7 --topic 'cmd/press-7/#' --action subscribe --json
"""


def add_parser(commands: Any) -> None:
    """Add ``gateway auth explain`` to the commands of ``gateway auth``."""
    parser = commands.add_parser(
        "explain",
        help="say who decides about a client and a topic, and why",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    client = parser.add_argument_group("the client")
    client.add_argument("--username", default="", metavar="NAME")
    client.add_argument("--clientid", default="", metavar="ID")
    client.add_argument("--address", default="", metavar="IP", help="where it connects from, as EMQX sees it")
    client.add_argument("--common-name", default="", metavar="NAME", help="of its verified certificate")
    client.add_argument(
        "--password-file", type=Path, metavar="FILE", help="holds its password or token; - reads standard input"
    )
    known = parser.add_argument_group(
        "what is known of it", "For a client whose source cannot be asked, or to try what would be if."
    )
    known.add_argument("--tenant", default="", metavar="NAME")
    known.add_argument("--group", action="append", default=[], metavar="NAME", help="may be given several times")
    known.add_argument("--attribute", action="append", default=[], metavar="NAME=VALUE")
    access = parser.add_argument_group("what it wants")
    access.add_argument("--topic", metavar="TOPIC", help="a topic, or the filter of a subscription")
    access.add_argument("--action", choices=("publish", "subscribe"), help="needed with --topic")
    access.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="default: 0")
    access.add_argument("--retain", action="store_true", help="it publishes a retained message")
    add_json(parser)
    add_config(parser)
    parser.set_defaults(run=_run, usage=parser.error)


def _run(arguments: argparse.Namespace) -> int:
    import asyncio

    from gateway.base import logs
    from gateway.cli.access.explain_text import as_json, as_text

    if not (arguments.username or arguments.clientid or arguments.common_name or arguments.address):
        arguments.usage("say which client: --username, --clientid, --common-name or --address")
    if bool(arguments.topic) != bool(arguments.action):
        arguments.usage("--topic and --action go together")
    settings = load_noted(arguments.config).settings
    undo = logs.configure(settings.log.model_copy(update={"level": "error"}))  # what is to be said, the page says
    try:
        explanation = asyncio.run(_explain(settings, arguments))
    finally:
        undo()
    if arguments.json:
        print(as_json(explanation))
    else:
        print(fitted(as_text(explanation, settings.auth, color=_color()), sys.stdout))
    return ExitStatus.OK


def _color() -> bool:
    import os

    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


async def _explain(settings: Settings, arguments: argparse.Namespace) -> Explanation:
    import asyncio
    import time
    from typing import cast

    from auth.hashing import Hasher
    from auth.logins.chain import make_chain
    from auth.logins.explain import TrustingHasher, explain
    from auth.store.store import Store, database_path

    request = _request(arguments)
    access = None
    if arguments.topic is not None:
        access = (arguments.action, arguments.topic, arguments.qos, arguments.retain)
    store = Store(database_path(settings))
    store.open()
    hasher = Hasher(settings.auth.hashing, store.device_keys())
    try:
        chain = make_chain(settings.auth, store, hasher if request.password else cast("Hasher", TrustingHasher()))
        await chain.start()
        try:
            return await explain(
                settings.auth,
                store,
                chain,
                request,
                access=access,
                known=_known(arguments),
                lock_outs=await asyncio.to_thread(_lock_outs, settings),
                now_s=time.time(),
            )
        finally:
            await chain.close()
    finally:
        hasher.close()
        store.close()


def _lock_outs(settings: Settings) -> list[LockedNow] | None:
    """What the running service says of them; None when none answers, or it does not tell us."""
    import json

    from auth.logins.protection import LockedNow
    from gateway.http.asking import ask

    auth = settings.auth
    port = settings.http.model_copy(update={"host": auth.operator_host, "port": auth.operator_port})
    try:
        _, body = ask(port, "/status", timeout_s=_ASK_S)
        return [
            LockedNow(one["kind"], one["name"], one["address"], one["seconds"] * 1_000_000_000)
            for one in json.loads(body)["lock_outs"]
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # no service, something else's port, or one that wants a token which the settings do not have


def _request(arguments: argparse.Namespace) -> LoginRequest:
    from auth.model import LoginRequest

    return LoginRequest(
        username=arguments.username,
        clientid=arguments.clientid,
        password=_password(arguments.password_file),
        peerhost=arguments.address,
        cert_common_name=arguments.common_name,
    )


def _password(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise GatewayError(f"--password-file {file} cannot be read: {why}.") from error
    password = text.removesuffix("\n").removesuffix("\r")
    if not password:
        raise GatewayError(f"--password-file {file} is empty.")
    return password


def _known(arguments: argparse.Namespace) -> Allow | None:
    from auth.model import Allow

    if not (arguments.tenant or arguments.group or arguments.attribute):
        return None
    attributes = {}
    for pair in arguments.attribute:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            arguments.usage(f"--attribute {pair}: write NAME=VALUE")
        attributes[name] = value
    return Allow(source="", tenant=arguments.tenant, groups=frozenset(arguments.group), attributes=attributes)
