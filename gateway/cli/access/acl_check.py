"""``gateway auth acl test``: the decision of the built-in rules on a client and a topic."""

import argparse

from auth.backends.local_users import asked_identities
from auth.model import AccessRequest, Subject
from auth.rules.files import rule_as_json
from auth.rules.rules import decide
from auth.store.store import Store
from config.errors import ExitStatus
from config.tables.auth import AuthSettings
from gateway.cli.access.common import add_attributes, add_client, attributes, database, login_of
from gateway.cli.access.rule_text import sentence
from gateway.cli.arguments import UsageError
from gateway.cli.parser import Commands, flag, repeated
from gateway.cli.table import print_json, shown, tell


def add_parser(parsers: Commands) -> None:
    status = "exit status: 0 allowed, 77 denied, anything else: unknown"
    parser = parsers.verb("test", _run, "say whether the rules allow something, and which one", status)
    parser.add_argument("action", choices=("publish", "subscribe"))
    parser.add_argument("topic", metavar="TOPIC", help="a topic, or the filter of a subscription")
    add_client(parser)
    parser.add_argument("--tenant", metavar="NAME", help="instead of the user's")
    repeated(parser, "--group", "NAME", "instead of the user's groups", dest="groups")
    add_attributes(parser)
    parser.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="default: 0")
    flag(parser, "--retain", "it publishes a retained message")


def _run(arguments: argparse.Namespace) -> int:
    """Says whether the rules allow a client to publish or subscribe, and which rule decides. Tenant, groups and
    attributes are those of the client's user in the database, unless they are given. Only the attributes of
    auth.client_attributes count, since EMQX sends no others. No other source of auth.chain is asked, and rules of a
    token are unknown; bans, and whether the user or its tenant is disabled, do not count: `gateway auth explain` has
    all of it.
    """
    if arguments.retain and arguments.action == "subscribe":
        raise UsageError("--retain is for publishing: a subscription has no retain flag.")
    with database(arguments) as (settings, store):
        subject, superuser = _subject(arguments, settings.auth, store)
        request = AccessRequest(subject, arguments.action, arguments.topic, arguments.qos, arguments.retain)
        decision = decide(store.rules_for(subject), request)
    allowed = superuser or decision.allowed
    rule = None if superuser else decision.rule
    reason = "the user is a superuser, for whom EMQX asks no rules" if superuser else decision.reason
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
        tell(f"The client: {_client_text(subject)}.")
    return ExitStatus.OK if allowed else ExitStatus.REFUSED


def _subject(arguments: argparse.Namespace, settings: AuthSettings, store: Store) -> tuple[Subject, bool]:
    """The client as the rules see it, and whether it is a superuser."""
    request = login_of(arguments)
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


def _client_text(subject: Subject) -> str:
    parts = [
        ("user name", subject.username),
        ("client id", subject.clientid),
        ("address", subject.peerhost),
        ("certificate", subject.cert_common_name),
        ("tenant", subject.tenant),
        ("groups", ", ".join(sorted(subject.groups))),
        ("attributes", ", ".join(f"{name}={value}" for name, value in sorted(subject.attributes.items()))),
    ]
    return "; ".join(f"{name} {shown(value)}" for name, value in parts if value) or "nothing is known of it"
