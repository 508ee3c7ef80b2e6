"""Finds the client of a request that came through a proxy from the header field X-Forwarded-For."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from fastovms.http.messages import Headers

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAX_HOPS: Final = 16
"""How many proxies are followed back; each costs a few microseconds on the event loop."""


class ForwardedClients:
    """Identifies clients behind proxies by `X-Forwarded-For`, to which each proxy adds its peer's
    address.

    Args:
        proxies: addresses and networks of the proxies that are trusted, separated by commas, "*" =
            any; None = no proxy. The field is ignored in requests of other peers, because any
            client can set it.
    """

    def __init__(self, proxies: str | None) -> None:
        names = () if proxies is None else proxies.split(",")
        self._proxies = [network for name in names for network in _networks(name)]

    def client(self, peer: str, headers: Headers) -> str:
        """Returns the client as address:port (with port 0 if a proxy reported the address): the
        last address that is not a trusted proxy, or the first valid one.

        Args:
            peer: address:port of the connection; "" = a Unix socket, whose peer is not a proxy.
        """
        told = headers.by_name.get("x-forwarded-for") if self._proxies and peer else None
        if told is None:
            return peer
        nearest = _address(peer)
        if nearest is None or not self._is_proxy(nearest):
            return peer
        found: Address | None = None
        for hop in reversed(told.rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
            address = _address(hop.strip())
            if address is None:
                break
            found = address
            if not self._is_proxy(address):
                break
        if found is None:
            return peer
        return f"[{found}]:0" if found.version == 6 else f"{found}:0"

    def _is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self._proxies)


def _networks(name: str) -> list[Network]:
    if name == "*":
        return [ip_network("0.0.0.0/0"), ip_network("::/0")]
    return [ip_network(name)]


def _address(text: str) -> Address | None:
    """Parses an address, with or without a port; None = invalid."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    with suppress(ValueError):
        address = ip_address(text)
        # A socket of both families tells IPv4 addresses as IPv6 ones (RFC 4291, 2.5.5.2).
        return getattr(address, "ipv4_mapped", None) or address
    return None
