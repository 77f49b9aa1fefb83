"""Tests of client addresses."""

from __future__ import annotations

import pytest

from scanline.service.http.addresses import client_address, client_network


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::FFFF:c000:207", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_network_is_one_caller(address: str, whose: str) -> None:
    assert client_network(address) == whose


@pytest.mark.parametrize(
    ("client", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("fe80::1%\x9b31mred", "fe80::1"),
        ("\x9b31mred", ""),
        ("a" * 20_000, ""),
    ],
)
def test_forwarded_addresses_are_validated(client: str, address: str) -> None:
    assert client_address(client) == address
