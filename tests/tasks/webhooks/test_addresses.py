"""Which addresses are public, which are private, and which are neither."""

import ipaddress
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from random import Random
from typing import Any

import pytest

from llama_herd.tasks.webhooks.connector import (
    EMBEDDING,
    METADATA,
    PRIVATE,
    REACHABLE,
    UNREACHABLE,
    Address,
    is_private,
    is_public,
)

PUBLIC = (
    "93.184.215.14",
    "2606:2800:21f:cb07::1",
    "::ffff:93.184.215.14",
    "64:ff9b::5db8:d70e",
    "2002:5db8:d70e::1",
)
PRIVATE_ONES = (
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "127.0.0.1", "127.255.0.1"),
    *("100.64.0.1", "100.127.255.255", "::1", "fc00::1", "fdff::1"),
    *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1"),
)
NEITHER = (
    *("0.0.0.0", "169.254.169.254", "192.0.2.1", "198.18.0.1", "203.0.113.1", "224.0.0.1", "240.0.0.1"),
    *("255.255.255.255", "::", "fe80::1", "fec0::1", "ff02::1", "2001:db8::1", "2001::1", "100::1"),
    *("::ffff:169.254.169.254", "::ffff:0.0.0.0", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "64:ff9b:1::1"),
    *("::10.0.0.1", "4000::1", "192.0.0.8", "192.0.0.170", "3fff::1", "5f00::1", "100:0:0:1::1"),
    *("2001:0:5db8:d70e::1", "64:ff9b:1:5db8:d7:e00::"),
    *(
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
    ),
    *("::ffff:100.100.100.200", "64:ff9b::6464:64c8", "2002:a83f:8110::1", "fd00:42::42"),
)

V4, V6 = (vars(ipaddress)[f"_IPv{number}Constants"] for number in (4, 6))


def kind(address: Address) -> tuple[bool, bool]:
    return is_public(address), is_private(address)


def edges(networks: Any) -> Iterator[Address]:
    """The first and the last address of each network, and those beside them."""
    for network in networks:
        first, last = int(network[0]), int(network[-1])
        for number in (first - 1, first, last, last + 1):
            if 0 <= number < 1 << network.max_prefixlen:
                yield type(network[0])(number)


def drawn(rng: Random) -> Iterator[Address]:
    """Addresses anywhere, near the edges of what any table has, and within."""
    for _ in range(2000):
        yield IPv4Address(rng.getrandbits(32))
        yield IPv6Address(rng.getrandbits(128))
        yield IPv6Address(rng.getrandbits(125) | 1 << 125)
    yield from edges((*PRIVATE, *UNREACHABLE, *REACHABLE, *METADATA, *EMBEDDING))
    yield from edges((*V4._private_networks, *V6._private_networks, *V6._reserved_networks))


@pytest.mark.parametrize("text", [*PUBLIC, *PRIVATE_ONES, *NEITHER])
def test_an_address_is_public_or_private_or_neither(text: str) -> None:
    assert kind(ip_address(text)) == (text in PUBLIC, text in PRIVATE_ONES)


def test_what_python_calls_special_is_not_public() -> None:
    """But for what the registries call reachable."""
    for address in drawn(Random(1)):
        is_special = not address.is_global or address.is_reserved or address.is_multicast
        embeds = any(address in network for network in EMBEDDING)
        if is_special and not embeds and not any(address in network for network in REACHABLE):
            assert not is_public(address), address


@pytest.mark.long
def test_what_neither_python_nor_the_registries_know_is_public() -> None:
    """The tables take no more than they name."""
    for address in drawn(Random(2)):
        if address.is_global and not address.is_multicast and not address.is_reserved:
            named = any(address in network for network in (*PRIVATE, *UNREACHABLE, *METADATA, *EMBEDDING))
            unicast = isinstance(address, IPv4Address) or address in ipaddress.ip_network("2000::/3")
            assert is_public(address) or named or not unicast, address


@pytest.mark.long
def test_an_address_of_ipv4_is_the_same_in_each_form_of_ipv6() -> None:
    for address in drawn(Random(3)):
        if isinstance(address, IPv4Address):
            for network, num_bits in EMBEDDING.items():
                inside = IPv6Address(int(network[0]) | int(address) << num_bits)
                assert kind(inside) == kind(address), inside


def test_where_clouds_tell_secrets_no_setting_leads() -> None:
    for network in METADATA:
        for address in (network[0], network[-1]):
            assert kind(address) == (False, False)


def test_what_is_reachable_lies_within_what_is_not() -> None:
    for one in REACHABLE:
        assert any(one.version == wide.version and one.subnet_of(wide) for wide in UNREACHABLE)  # type: ignore[arg-type]
