"""``gateway auth acl test``: what the rules of the built-in database say of a client and a topic."""

from __future__ import annotations

__all__ = ["add_parser"]

from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus
from gateway.cli.access.common import AdminError, add_attributes, add_common, attributes, database, print_json, shown
from gateway.cli.access.rule_text import sentence
from gateway.cli.table import tell

if TYPE_CHECKING:
    import argparse

    from auth.model import Subject
    from auth.store.store import Store
    from config.auth import AuthSettings

_DESCRIPTION = """\
Says whether the rules allow a client to publish or subscribe, and which rule decides. Tenant, groups and attributes are
those of the user in the database that the client would be found as, unless they are given; of the attributes, those in
auth.client_attributes, which are all that EMQX sends back. Nobody else in auth.chain is asked, and no rules of a token
are known: `gateway auth explain` does all that.
"""
_EPILOG = """\
exit status: 0 it is allowed, 77 it is denied, anything else: it could not be found out
"""


def add_parser(parsers: Any) -> None:
    """Add the command to those of ``gateway auth acl``."""

    parser = parsers.add_parser(
        "test",
        help="say whether a client may do something, and by which rule",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("action", choices=("publish", "subscribe"))
    parser.add_argument("topic", metavar="TOPIC", help="a topic, or the filter of a subscription")
    parser.add_argument("--username", default="", metavar="NAME")
    parser.add_argument("--clientid", default="", metavar="ID")
    parser.add_argument("--address", default="", metavar="IP", help="where it connects from, as EMQX sees it")
    parser.add_argument("--common-name", default="", metavar="NAME", help="of its verified certificate")
    parser.add_argument("--tenant", metavar="NAME", help="instead of the user's")
    parser.add_argument("--group", dest="groups", action="append", metavar="NAME", help="instead of the user's groups")
    add_attributes(parser)
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="default: 0")
    parser.add_argument("--retain", action="store_true", help="it publishes a retained message")
    add_common(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from auth.model import AccessRequest
    from auth.rules.files import rule_as_json
    from auth.rules.rules import decide

    if arguments.retain and arguments.action == "subscribe":
        raise AdminError("--retain is about publishing: a subscription has no retain flag.")
    with database(arguments) as (settings, store):
        subject, superuser = _subject(arguments, settings.auth, store)
        request = AccessRequest(subject, arguments.action, arguments.topic, arguments.qos, arguments.retain)
        decision = decide(store.rules_for(subject), request)
    allowed = superuser or decision.allowed
    rule = None if superuser else decision.rule
    reason = "the user is a superuser, about whom EMQX asks no rules" if superuser else decision.reason
    if arguments.json:
        source = {} if rule is None else {"source": rule.source}
        print_json(
            {
                "allowed": allowed,
                "reason": reason,
                "rule": None if rule is None else {**source, **rule_as_json(rule)},
                "tenant": subject.tenant,
                "groups": sorted(subject.groups),
                "attributes": dict(subject.attributes),
            }
        )
    else:
        tell(f"{'Allowed' if allowed else 'Denied'}: {reason}{'' if rule is None else f': {sentence(rule)}'}.")
        tell(f"It was asked for {_of(subject)}.")
    return ExitStatus.OK if allowed else ExitStatus.REFUSED


def _subject(arguments: argparse.Namespace, settings: AuthSettings, store: Store) -> tuple[Subject, bool]:
    """Who the client is for the rules, and whether it is a superuser."""
    from auth.backends.local_users import asked_identities
    from auth.model import LoginRequest, Subject

    request = LoginRequest(
        username=arguments.username,
        clientid=arguments.clientid,
        peerhost=arguments.address,
        cert_common_name=arguments.common_name,
    )
    users = (store.find_user(*identity) for identity in asked_identities(request, settings.database.identities))
    user = next((user for user in users if user is not None), None)
    tenant = arguments.tenant if arguments.tenant is not None else "" if user is None else user.tenant
    groups = frozenset(arguments.groups or (() if user is None else user.groups))
    known = dict(user.attributes) if user is not None else {}
    record = store.tenant(tenant) if tenant else None
    if record is not None:
        known = {**record.attributes, **known}
    known |= attributes(arguments.attributes)
    sent = {name: value for name, value in known.items() if name in settings.client_attributes}
    subject = Subject(
        username=request.username,
        clientid=request.clientid,
        peerhost=request.peerhost,
        cert_common_name=request.cert_common_name,
        tenant=tenant,
        groups=groups,
        attributes=sent,
    )
    return subject, user is not None and user.is_superuser


def _of(subject: Subject) -> str:
    parts = [
        ("user name", subject.username),
        ("client id", subject.clientid),
        ("address", subject.peerhost),
        ("certificate", subject.cert_common_name),
        ("tenant", subject.tenant),
        ("groups", ", ".join(sorted(subject.groups))),
        ("attributes", ", ".join(f"{name}={value}" for name, value in sorted(subject.attributes.items()))),
    ]
    return "; ".join(f"{name} {shown(value)}" for name, value in parts if value) or "a client that nothing is known of"
