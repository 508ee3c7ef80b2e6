"""Checks before a handler runs: host, origin, API key, CORS, media type; and the client's address
behind proxies."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import socket
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from fastovms.config import KEY_VARIABLES
from fastovms.errors import ConfigurationError
from fastovms.http.messages import (
    Budget,
    Caller,
    ErrorRenderer,
    HeaderPairs,
    Headers,
    Request,
    Response,
)
from fastovms.setting import count

_ADMIN = "admin"
_NO_LIMIT: Final = 2**53
_KEY_FIELDS = ("x-api-key",)
"""Fields that hold only a key: Anthropic's clients send it so."""

_CHALLENGE = (("WWW-Authenticate", 'Bearer realm="fastovms"'),)


class ApiKeys:
    """A check that refuses requests without a valid key, and records the tenant of accepted
    requests.

    Args:
        exempt: paths without authentication, such as health; a trailing slash is ignored.
        admins: the operators' keys, which allow administrative requests.
        budgets: the usage of keys with limits; None = no key has limits.
    """

    def __init__(
        self,
        keys: Iterable[str],
        render_error: ErrorRenderer,
        exempt: Collection[str] = (),
        admins: Iterable[str] = (),
        budgets: Budgets | None = None,
    ) -> None:
        # Digests have equal lengths, so the time of a comparison does not depend on the keys.
        self._digests = [_digest(key.encode()) for key in dict.fromkeys(keys)]
        if not self._digests:
            raise ConfigurationError("no API key is given")
        self._admins = frozenset(map(tenant_of, admins))
        self._budgets = budgets
        self._render_error = render_error
        self._exempt = frozenset(exempt)

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants of requests with these keys."""
        return frozenset(digest.hex() for digest in self._digests)

    def __call__(self, request: Request) -> Response | None:
        path = request.path
        if path in self._exempt or (path.rstrip("/") or "/") in self._exempt:
            return None
        given = _given_keys(request)
        if not given:
            return self._refuse(
                request, "an API key is required: Authorization: Bearer <key>, or x-api-key: <key>"
            )
        for key in given:
            digest = _digest(key.encode("latin-1"))
            # No early end: the time must not show which key matched, or how many keys exist.
            matches = [hmac.compare_digest(digest, known) for known in self._digests]
            if any(matches):
                tenant = digest.hex()
                request.caller = Caller(
                    tenant=tenant,
                    is_admin=tenant in self._admins,
                    budget=None if self._budgets is None else self._budgets.find(tenant),
                )
                return None
        return self._refuse(request, "the API key is not valid")

    def _refuse(self, request: Request, message: str) -> Response:
        response = self._render_error(request, 401, message)
        return dataclasses.replace(response, headers=response.headers + _CHALLENGE)


class KeyLimits(NamedTuple):
    """The limits of one API key; 0 = no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    tokens_per_day: int = 0


NO_LIMITS: Final = KeyLimits()

_LIMITS: Final = {name.replace("_", "-"): name for name in KeyLimits._fields}
"""The fields of `KeyLimits` by their names in a file of keys, which are those of the flags."""


class Budgets(Protocol):
    """The usage of all API keys with limits."""

    def set_limits(self, limits: Mapping[str, KeyLimits]) -> None:
        """Replaces the limits of all tenants."""

    def find(self, tenant: str) -> Budget | None:
        """Returns the budget of a tenant; None = its key has no limits."""


class KnownKeys(NamedTuple):
    """The valid API keys.

    Attributes:
        every: all keys; empty = requests need no key.
        admins: the operators' keys.
        limits: the limits of the keys that have any.
    """

    every: list[str]
    admins: list[str]
    limits: Mapping[str, KeyLimits]


def read_api_keys(
    path: Path | None,
    environ: Mapping[str, str],
    given: Sequence[str] = (),
    usual: KeyLimits = NO_LIMITS,
) -> KnownKeys:
    """Returns the given keys and those of a file, one per line (blank lines and those that begin
    with # are skipped). Without either, returns the key in the environment's API_KEY or
    VLLM_API_KEY. After a key in the file, the word "admin" makes it an operator's key, and words
    such as "requests-per-minute=60" replace its usual limits. Raises ConfigurationError if the file
    cannot be read or has no key, a line is invalid, or there are limits but no keys."""
    keys = [("--api-key", key, usual) for key in given]
    admins: list[str] = []
    if path is not None:
        for number, line in _read_keys(path):
            key, *words = line.split(" ")
            source = f"{path}, line {number}"
            is_admin, limits = _read_words(source, words, usual)
            if is_admin:
                admins.append(key)
            keys.append((source, key, limits))
    elif not keys:
        found = [(name, environ.get(name, "").strip()) for name in KEY_VARIABLES]
        keys = [(name, key, usual) for name, key in found if key][:1]
    for source, key, _ in keys:
        if not (key.isascii() and key.isprintable()) or " " in key:
            # The key itself must not appear in a log.
            raise ConfigurationError(f"{source}: an API key is visible ASCII without blanks")
    if any(usual) and not keys:
        name = next(name for name, field in _LIMITS.items() if getattr(usual, field))
        raise ConfigurationError(
            f"--{name} limits API keys, and this server has none: give --api-key-file"
        )
    limited = {key: limits for _, key, limits in keys if any(limits)}
    return KnownKeys([key for _, key, _ in keys], admins, limited)


def _read_words(source: str, words: Sequence[str], usual: KeyLimits) -> tuple[bool, KeyLimits]:
    """Returns whether the words after a key make it an operator's, and its limits."""
    is_admin, limits = False, {}
    for word in filter(None, words):
        name, sign, value = word.partition("=")
        if word == _ADMIN:
            is_admin = True
        elif not sign or name not in _LIMITS:
            # The word may be a part of a key, which must not appear in a log.
            raise ConfigurationError(
                f"{source}: an API key must not contain blanks; only {_ADMIN} and limits such as "
                f"{'=60, '.join(_LIMITS)}=1m may follow the key"
            )
        elif _LIMITS[name] in limits:
            raise ConfigurationError(f"{source}: {name} is given twice")
        else:
            try:
                limits[_LIMITS[name]] = count(0, _NO_LIMIT)(value)
            except ArgumentTypeError as error:
                raise ConfigurationError(f"{source}: {name} {error}; 0 = no limit") from None
    return is_admin, usual._replace(**limits)


def _read_keys(path: Path) -> list[tuple[int, str]]:
    """Returns the lines with keys, and their numbers."""
    try:
        # Some editors begin a file with a byte order mark.
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the API keys in {path}: {error}") from None
    keys = [(n, line) for n, line in enumerate(lines, 1) if line and not line.startswith("#")]
    if not keys:
        raise ConfigurationError(f"{path} has no API key")
    return keys


def _given_keys(request: Request) -> list[str]:
    """Returns the keys in all header fields of a request that may hold one; "" for a field without
    a key."""
    fields = request.headers.by_name
    given = [fields[name] for name in _KEY_FIELDS if name in fields]
    authorization = fields.get("authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(" ")
        # One or more spaces (RFC 9110 11.4). `str.strip` would also remove bytes that are white
        # space in Latin-1.
        given.insert(0, key.strip(" ") if scheme.lower() == "bearer" else "")
    return given


def tenant_of(key: str) -> str:
    """Returns the tenant of requests with this key: its digest."""
    return _digest(key.encode()).hex()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


_MAX_PASSED: Final = 64
_MAX_LENGTH: Final = 261  # a name of 255 characters (RFC 1035 2.3.4), a colon and a port


class HostCheck:
    """A check that refuses requests whose Host header names another machine (DNS rebinding).

    A malicious page's owner can let its name resolve to 127.0.0.1 after the page is loaded. The
    browser then regards this server as the page's own: requests have a matching `Origin`, but the
    page's `Host`.

    IP addresses are accepted, because they need no name server. So are requests over a Unix socket
    and without Host (HTTP/1.0): browsers do not send them.

    Args:
        names: the names of the server in addition to localhost, without ports.
        applies: returns whether to check, called for each request.
    """

    def __init__(
        self,
        names: Iterable[str],
        render_error: ErrorRenderer,
        applies: Callable[[], bool] = lambda: True,
    ) -> None:
        self._names = frozenset({"localhost", *(name.lower().rstrip(".") for name in names)})
        self._render_error = render_error
        self._applies = applies
        self._passed: set[str] = set()  # valid Host fields, to check each only once

    def __call__(self, request: Request) -> Response | None:
        host = request.headers.by_name.get("host")
        if not host or host in self._passed or not request.client or not self._applies():
            return None
        if host[0] == "[":
            return None  # an IPv6 address: `head` has checked the form
        name = host.partition(":")[0].lower().rstrip(".")
        if name in self._names or name.endswith(".localhost") or _is_ipv4(name):
            if len(self._passed) < _MAX_PASSED and len(host) <= _MAX_LENGTH:
                self._passed.add(host)
            return None
        # RFC 9110 15.5.20: a request for an authority that this server does not speak for.
        return self._render_error(
            request,
            421,
            f"this server is not known as {name!r}: start it with --allowed-hosts {name}, or "
            "use an address or localhost",
        )


def machine_names(hostname: str, hosts_file: Path = Path("/etc/hosts")) -> set[str]:
    """Returns the machine's name, with and without its domain, from the host name and its lines in
    /etc/hosts, not from a name server."""
    names = {hostname.lower(), hostname.lower().partition(".")[0]}
    try:
        lines = hosts_file.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        aliases = line.partition("#")[0].lower().split()[1:]
        if not names.isdisjoint(aliases):
            names.update(aliases)
    return names - {""}


def _is_ipv4(name: str) -> bool:
    """Returns whether a host is an IPv4 address, in any of the forms that clients send unchanged,
    such as 127.1."""
    try:
        socket.inet_aton(name)
    except OSError:
        return False
    return True


class OriginCheck:
    """A check that refuses requests of disallowed origins, including preflights.

    A browser sends some cross-origin requests without a preflight: forms, `text/plain`, images. Its
    `Origin` and `Sec-Fetch-*` headers, which scripts cannot set, name the page that sends them
    (https://fetch.spec.whatwg.org/#origin-header, https://www.w3.org/TR/fetch-metadata/). Other
    clients send none of these headers, and are not checked.

    Args:
        policy: decides which other origins are allowed.
        tls: whether this server itself terminates TLS. If not, a proxy may.
    """

    def __init__(self, policy: CorsPolicy, render_error: ErrorRenderer, *, tls: bool) -> None:
        self._policy = policy
        self._render_error = render_error
        self._own_schemes = ("https://",) if tls else ("http://", "https://")

    def __call__(self, request: Request) -> Response | None:
        fields = request.headers.by_name
        origin, site = fields.get("origin"), fields.get("sec-fetch-site")
        if origin is None and site is None:
            return None
        if site == "cross-site" and essence(fields.get("content-type", "")) in FORM_TYPES:
            return self._refuse(
                request,
                "forms of other sites are not accepted: Content-Type must be application/json",
            )
        if origin is None:
            if site in _OWN_SITES or self._policy.any_origin or _is_followed_link(request):
                return None
            return self._refuse(request, "pages of other sites may not embed this server's answers")
        if site == "same-origin" or self._policy.allows(origin) or self._is_own(request, origin):
            return None
        return self._refuse(
            request,
            f"pages of {origin!r} may not use this server: --allowed-origins names those that may",
        )

    def _is_own(self, request: Request, origin: str) -> bool:
        host = request.headers.by_name.get("host", "")
        return any(origin == scheme + host for scheme in self._own_schemes)

    def _refuse(self, request: Request, message: str) -> Response:
        return self._render_error(request, 403, message)


_OWN_SITES = ("same-origin", "none")
"""The allowed values of Sec-Fetch-Site: a page of this server, and an address that was typed or
bookmarked. "same-site" is not allowed: it may be another server on another port of this machine."""


def _is_followed_link(request: Request) -> bool:
    """Returns whether the answer will be shown in a whole browser window, so that no other page can
    read it."""
    fields = request.headers.by_name
    return (
        request.method == "GET"
        and fields.get("sec-fetch-mode") == "navigate"
        and fields.get("sec-fetch-dest") == "document"
    )


_PREFLIGHT_MAX_AGE = "600"  # seconds; browsers limit it to 600 to 86400


class CorsPolicy:
    """The CORS permissions of other origins.

    The settings are those of OpenVINO Model Server: lists separated by commas, "*" for anything.

    Args:
        origins: "*", or origins such as "https://example.org, http://localhost:3000"; "" = none.
        methods, headers: "*", or names. With "*", the requested names are returned, because
            browsers exclude Authorization from a wildcard.
        credentials: whether scripts may send cookies. Only for listed origins, because browsers do
            not allow credentials with a wildcard.

    Attributes:
        any_origin: whether `origins` contains "*".
    """

    def __init__(
        self,
        origins: str,
        methods: str = "*",
        headers: str = "*",
        *,
        credentials: bool = False,
    ) -> None:
        self._origins = frozenset(_names(origins))
        self._methods = ", ".join(_names(methods))
        self._headers = ", ".join(_names(headers))
        self.any_origin = "*" in self._origins
        self._credentials: HeaderPairs = ()
        if credentials:
            self._credentials = (("Access-Control-Allow-Credentials", "true"),)

    def allows(self, origin: str) -> bool:
        """Returns whether pages of this origin may read answers."""
        return self.any_origin or origin in self._origins

    def response_fields(self, request: Request) -> HeaderPairs:
        """Returns the CORS headers of any answer to this request."""
        origin = request.headers.by_name.get("origin")
        if self.any_origin:
            if origin is None:
                return ()
            return (("Access-Control-Allow-Origin", "*"), _EXPOSED, *self._credentials)
        if not self._origins:
            return ()  # without CORS no answer depends on the origin
        if origin is None or origin not in self._origins:
            return _VARIES
        allowed = ("Access-Control-Allow-Origin", origin)
        return (allowed, _EXPOSED, *_VARIES, *self._credentials)

    def preflight_fields(self, request: Request) -> HeaderPairs | None:
        """Returns the additional headers of the answer to a preflight; None = not a preflight."""
        asked = request.headers.by_name
        method = asked.get("access-control-request-method")
        if method is None or "origin" not in asked:
            return None
        methods = method if self._methods == "*" else self._methods
        headers = self._headers
        if headers == "*":
            headers = asked.get("access-control-request-headers", "*")
        return (
            ("Access-Control-Allow-Methods", methods),
            ("Access-Control-Allow-Headers", headers),
            ("Access-Control-Max-Age", _PREFLIGHT_MAX_AGE),
        )


_VARIES: HeaderPairs = (("Vary", "Origin"),)
_EXPOSED = ("Access-Control-Expose-Headers", "X-Request-Id, Request-Id, traceresponse")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


FORM_TYPES = frozenset(("application/x-www-form-urlencoded", "multipart/form-data", "text/plain"))
"""The media types that pages may send to any origin without a preflight
(https://fetch.spec.whatwg.org/#cors-safelisted-request-header)."""

_UNASKED = "application/x-www-form-urlencoded"
"""The default type of curl and urllib for any body; it does not show what the body is."""


class JsonOnly:
    """A check that refuses bodies with a Content-Type other than JSON. A request without a type
    passes: its body is read as JSON.

    Args:
        upload_routes: patterns of routes that accept other types by POST and check these
            themselves.
    """

    def __init__(self, render_error: ErrorRenderer, upload_routes: Collection[str] = ()) -> None:
        self._render_error = render_error
        self._upload_routes = frozenset(upload_routes)

    def __call__(self, request: Request) -> Response | None:
        if request.method in ("GET", "HEAD", "DELETE"):
            return None
        fields = request.headers.by_name
        coding = fields.get("content-encoding")
        if coding is not None and coding.lower() != "identity":
            response = self._render_error(
                request, 415, f"Content-Encoding {coding!r} is not supported"
            )
            # RFC 9110 15.5.16: the answer names the supported coding.
            accepted = (("Accept-Encoding", "identity"),)
            return dataclasses.replace(response, headers=response.headers + accepted)
        given = fields.get("content-type")
        if given is None:
            return None
        kind = essence(given)
        if request.route in self._upload_routes:
            return None
        if kind in ("application/json", _UNASKED) or (
            kind.startswith("application/") and kind.endswith("+json")
        ):
            return None
        return self._render_error(
            request, 415, f"Content-Type {given!r} is not supported, only application/json"
        )


def essence(content_type: str) -> str:
    """Returns type and subtype, without parameters, in lower case (RFC 9110 8.3.1)."""
    return content_type.partition(";")[0].strip().lower()


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAX_HOPS: Final = 16
"""The maximum number of proxies in X-Forwarded-For; each costs a few microseconds on the event
loop."""


class ForwardedClients:
    """Identifies clients behind proxies by `X-Forwarded-For`, to which each proxy appends its
    peer's address.

    Args:
        proxies: addresses and networks of the trusted proxies, separated by commas; "*" = any; None
            = no proxy. The header is ignored in requests of other peers, because any client can set
            it.
    """

    def __init__(self, proxies: str | None) -> None:
        names = () if proxies is None else proxies.split(",")
        every = ("0.0.0.0/0", "::/0")
        listed = [each for name in names for each in (every if name == "*" else (name,))]
        self._proxies = [ip_network(network) for network in listed]

    def client(self, peer: str, headers: Headers) -> str:
        """Returns the client as address:port (with port 0 if a proxy reported the address): the
        last address that is not a trusted proxy, or the first valid one.

        Args:
            peer: address:port of the connection; "" = a Unix socket, whose peer is not a proxy.
        """
        forwarded = headers.by_name.get("x-forwarded-for") if self._proxies and peer else None
        if forwarded is None:
            return peer
        nearest = _address(peer)
        if nearest is None or not self._is_proxy(nearest):
            return peer
        found: Address | None = None
        for hop in reversed(forwarded.rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
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


def _address(text: str) -> Address | None:
    """Parses an address, with or without a port; None = invalid."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    with suppress(ValueError):
        address = ip_address(text)
        # A dual-stack socket reports IPv4 addresses as IPv4-mapped IPv6 addresses (RFC 4291,
        # 2.5.5.2).
        return getattr(address, "ipv4_mapped", None) or address
    return None
