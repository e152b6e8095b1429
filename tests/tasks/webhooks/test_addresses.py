"""Which addresses are public, which are private, and which are neither."""

from ipaddress import ip_address

import pytest

from llama_herd.tasks.webhooks.addresses import is_private, is_public

PUBLIC = ("93.184.215.14", "2606:2800:21f:cb07::1", "::ffff:93.184.215.14", "64:ff9b::5db8:d70e")
PRIVATE = (
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "127.0.0.1", "127.255.0.1"),
    *("100.64.0.1", "100.127.255.255", "::1", "fc00::1", "fdff::1"),
    *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1"),
)
NEITHER = (
    *("0.0.0.0", "169.254.169.254", "192.0.2.1", "198.18.0.1", "203.0.113.1", "224.0.0.1", "240.0.0.1"),
    *("255.255.255.255", "::", "fe80::1", "fec0::1", "ff02::1", "2001:db8::1", "2001::1", "100::1"),
    *("::ffff:169.254.169.254", "::ffff:0.0.0.0", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "64:ff9b:1::1"),
    *("::10.0.0.1", "4000::1"),
)


@pytest.mark.parametrize("text", [*PUBLIC, *PRIVATE, *NEITHER])
def test_an_address_is_public_or_private_or_neither(text: str) -> None:
    address = ip_address(text)
    assert (is_public(address), is_private(address)) == (text in PUBLIC, text in PRIVATE)
