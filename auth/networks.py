"""Addresses and networks in the database: one spelling each, found by index.

A network is stored as text (``10.0.0.0/8``, an address as ``/32`` or ``/128``) with a number for its kind and length.
An address is looked up once for each length in use, and few are in use.
"""

import ipaddress
from collections.abc import Sequence
from typing import Final

_V6: Final = 1000  # added to the length of an IPv6 network
_MAPPED_BITS: Final = 96  # ::ffff:0:0/96 holds the IPv4 addresses, as a dual-stack listener sees them


def canonical_network(text: str) -> str:
    """The one spelling of a network or address. Raises ValueError with a sentence."""
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ValueError(
            'an address is one such as "10.1.2.3" or a network such as "10.0.0.0/8" or "fd00::/8"'
        ) from None
    if isinstance(network, ipaddress.IPv6Network):
        mapped = network.network_address.ipv4_mapped
        if mapped is not None and network.prefixlen >= _MAPPED_BITS:
            return f"{mapped}/{network.prefixlen - _MAPPED_BITS}"
        if network.network_address.scope_id is not None:
            raise ValueError("an address is stored without a zone (%eth0)")
    return str(network)


def prefix_code(network: str) -> int:
    """The kind and length of a canonical network as one number: larger is narrower within a kind."""
    address, _, length = network.rpartition("/")
    return int(length) + (_V6 if ":" in address else 0)


def enclosing(address: str, codes: Sequence[int]) -> list[str]:
    """The canonical networks of these ``prefix_code`` kinds with ``address``, in the order of ``codes``; empty if the
    text is no address."""
    if not codes:
        return []  # as in most databases; parsing the address takes 7 µs
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return []
    if isinstance(parsed, ipaddress.IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    four = parsed.version == 4
    bits = parsed.max_prefixlen
    value = int(parsed)
    found = []
    for code in codes:
        if four == (code < _V6):
            length = code if four else code - _V6
            masked = value >> (bits - length) << (bits - length)
            found.append(f"{ipaddress.IPv4Address(masked) if four else ipaddress.IPv6Address(masked)}/{length}")
    return found
