"""Client addresses, and the networks that count as one client."""

from __future__ import annotations

import ipaddress
import re

_ZONE = re.compile(r"[A-Za-z0-9_.-]{0,15}")  # zone (interface) of an IPv6 link-local address


def client_address(client: str) -> str:
    """Return a client's IP address, or "" if the text is none.

    A client may write any text into ``X-Forwarded-For``.
    """
    address, _, zone = client.partition("%")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return ""
    return client if _ZONE.fullmatch(zone) else address


def client_network(address: str) -> str:
    """Return the network that counts as one client.

    It is an IPv4 address itself, but the /64 network of an IPv6 address, because one client usually
    owns all of it. An IPv4-mapped IPv6 address, which some proxies write, is the IPv4 address.
    """
    if not address:  # a proxy forwarded something else (see ``client_address``)
        return address
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.version == 4 or ip.ipv4_mapped:
        return str(ip if ip.version == 4 else ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False))
