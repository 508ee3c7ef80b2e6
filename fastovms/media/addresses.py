"""Says which addresses a client may make the server connect to."""

from __future__ import annotations

import ipaddress
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""A network whose addresses lead to the IPv4 address in their last four bytes (RFC 6052)."""


def is_public(text: str) -> bool:
    """Returns whether an address is one of the Internet at large: no private, link-local, loopback,
    shared, reserved or multicast one, nor one that leads to such an IPv4 address."""
    try:
        address: Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return _is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.is_site_local or (address.sixtofour and not _is_public(address.sixtofour)):
            return False
    return _is_public(address)


def _is_public(address: Address) -> bool:
    return address.is_global and not (
        address.is_private or address.is_multicast or address.is_reserved
    )
