"""Networks have one spelling each, and an address is found in those that hold it."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.networks import canonical_network, enclosing, prefix_code


@pytest.mark.parametrize(("text", "canonical"), [
    ("10.1.2.3", "10.1.2.3/32"), (" 10.1.2.3/8 ", "10.0.0.0/8"), ("fd00::1", "fd00::1/128"),
    ("FD00:0:0::1/8", "fd00::/8"), ("::ffff:10.1.2.3", "10.1.2.3/32"), ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
    ("::ffff:0:0/96", "0.0.0.0/0"), ("::ffff:10.1.2.3/64", "::/64"), ("0.0.0.0/0", "0.0.0.0/0"), ("::/0", "::/0"),
])  # fmt: skip
def test_a_network_has_one_spelling(text: str, canonical: str) -> None:
    assert canonical_network(text) == canonical
    assert canonical_network(canonical) == canonical


@pytest.mark.parametrize("text", ["", "mars", "10.0.0.300", "10.0.0.0/33", "fe80::1%eth0", "10.0.0.1/8/8", "1e1"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        canonical_network(text)


@given(
    address=st.ip_addresses(),
    networks=st.lists(st.tuples(st.ip_addresses(), st.integers(0, 128)), max_size=8),
    own=st.integers(0, 128),
)
def test_an_address_is_found_in_the_networks_that_hold_it(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
    networks: list[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]],
    own: int,
) -> None:
    stored = {
        canonical_network(f"{one}/{min(length, one.max_prefixlen)}") for one, length in [*networks, (address, own)]
    }
    codes = sorted({prefix_code(network) for network in stored}, reverse=True)
    looked_up = address
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        looked_up = address.ipv4_mapped
    wanted = {network for network in stored if looked_up in ipaddress.ip_network(network)}
    found = [network for network in enclosing(str(address), codes) if network in stored]
    assert set(found) == wanted
    lengths = [int(network.rpartition("/")[2]) for network in found]
    assert lengths == sorted(lengths, reverse=True), "the narrowest first"


@given(text=st.text(max_size=40))
def test_any_text_is_no_address_or_one(text: str) -> None:
    assert isinstance(enclosing(text, [32, 8, 0, 1128, 1000]), list)
