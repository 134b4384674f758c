"""The conditions of access rules: users, client ids, groups, tenants, networks, certificates, attributes."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from auth.model import Subject, SubjectKind, Who

_LONGEST_ADDRESS: Final = 64  # an IPv6 address with a zone


def concerns(who: Who, subject: Subject) -> bool:
    """Whether all conditions hold. An empty ``who`` concerns nobody. So does a condition with an empty value: it does
    not mean clients without a user name."""
    for kind, value in who:
        if kind != "all" and not (value and _holds(kind, value, subject)):
            return False
    return bool(who)


def _holds(kind: SubjectKind, value: str, subject: Subject) -> bool:
    """Whether a condition with a value holds; never one of an unknown kind."""
    match kind:
        case "username":
            return subject.username == value
        case "clientid":
            return subject.clientid == value
        case "group":
            return value in subject.groups
        case "tenant":
            return subject.tenant == value
        case "address":
            return in_network(subject.peerhost, value)
        case "common_name":
            return subject.cert_common_name == value
        case "attribute":
            name, _separator, wanted = value.partition("=")
            return wanted != "" and subject.attributes.get(name) == wanted
        case _:  # an unknown kind concerns nobody; "all" does not come here
            return False


def in_network(address: str, network: str) -> bool:
    """Whether an address is in a network, or equals an address. An IPv4 address in IPv6 form (``::ffff:10.0.0.1``)
    counts as IPv4 on both sides. Other text is in no network."""
    if len(address) > _LONGEST_ADDRESS or len(network) > _LONGEST_ADDRESS:
        return False
    host, net = _address(address), _network(network)
    return host is not None and net is not None and host.version == net.version and host in net


@lru_cache(maxsize=4096)
def _address(text: str) -> IPv4Address | IPv6Address | None:
    """The address, IPv4 in IPv6 form as IPv4; None for other text."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address
    return address


@lru_cache(maxsize=4096)
def _network(text: str) -> IPv4Network | IPv6Network | None:
    """The network, IPv4 in IPv6 form as IPv4; None for other text."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        wrapped = network.network_address.ipv4_mapped
        if wrapped is not None:
            return IPv4Network((wrapped, network.prefixlen - 96))
    return network


def condition_problem(kind: str, value: str) -> str:
    """Why a rule cannot have this condition, as a sentence; empty if it can. For edits and imports."""
    match kind:
        case "all":
            return f"'all' is everybody and takes no value, but it has {value[:100]!r}" if value else ""
        case "address":
            if len(value) > _LONGEST_ADDRESS or _network(value) is None:
                return f"{value[:100]!r} is neither an address nor a network such as 10.0.0.0/8 or 2001:db8::/32"
        case "attribute":
            name, _separator, wanted = value.partition("=")
            if not name or not wanted:
                return f"an attribute is written NAME=VALUE, such as site=berlin, not {value[:100]!r}"
        case "username" | "clientid" | "group" | "tenant" | "common_name":
            if not value:
                return f"the {kind} of a rule cannot be empty: it would concern nobody"
        case _:
            return (
                f"{kind[:100]!r} is nothing that rules can ask about; there are username, clientid, group, tenant, "
                "address, common_name, attribute and all"
            )
    return ""
