"""Clients' addresses, and whose they are."""

from __future__ import annotations

import ipaddress
import re

_INTERFACE = re.compile(r"[A-Za-z0-9_.-]{0,15}")  # of IPv6's addresses of a link


def client_address(client: str) -> str:
    """Give a client's address; none for what is no address, as what it may have sent itself."""
    address, _, interface = client.partition("%")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return ""
    return client if _INTERFACE.fullmatch(interface) else address


def client_network(address: str) -> str:
    """Give whose an address is: itself, or IPv6's network of 64 bits, of which one has all.

    IPv4's written as IPv6's, as some proxies do, is the same.
    """
    if not address:  # a socket of the file system has none
        return address
    known = ipaddress.ip_address(address.partition("%")[0])
    if known.version == 4 or known.ipv4_mapped:
        return str(known if known.version == 4 else known.ipv4_mapped)
    return str(ipaddress.ip_network((known, 64), strict=False))
