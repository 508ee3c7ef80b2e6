"""Checks keys, which are bearer tokens (RFC 6750 2.1) or stand in a field of their own: 401 without
one."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fastovms.errors import ConfigurationError
from fastovms.http.routing.messages import ErrorRenderer, Request, Response

_VARIABLES = ("API_KEY", "VLLM_API_KEY")
_ADMIN = "admin"
_KEY_FIELDS = ("x-api-key",)
"""Fields that hold a key and nothing else: Anthropic's clients send it so."""

_CHALLENGE = (("WWW-Authenticate", 'Bearer realm="fastovms"'),)


class ApiKeys:
    """A check that refuses requests without one of the keys, and notes whose key each of the others
    has.

    Args:
        exempt: paths that anybody may ask, such as health; a trailing slash is overlooked.
        admins: those of the keys whose owners may say what the server does, not only ask it.
    """

    def __init__(
        self,
        keys: Iterable[str],
        render_error: ErrorRenderer,
        exempt: Collection[str] = (),
        admins: Iterable[str] = (),
    ) -> None:
        # Digests have one length, and comparing them tells nothing about the keys.
        self._digests = [_digest(key.encode()) for key in dict.fromkeys(keys)]
        if not self._digests:
            raise ConfigurationError("no API key is given")
        self._admins = frozenset(_digest(key.encode()).hex() for key in admins)
        self._render_error = render_error
        self._exempt = frozenset(exempt)

    @property
    def tenants(self) -> frozenset[str]:
        """What requests with these keys have as their tenant."""
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
            # No early end: the time must not tell which key it was, or how many there are.
            matches = [hmac.compare_digest(digest, known) for known in self._digests]
            if any(matches):
                request.tenant = digest.hex()
                request.is_admin = request.tenant in self._admins
                return None
        return self._refuse(request, "the API key is not valid")

    def _refuse(self, request: Request, message: str) -> Response:
        response = self._render_error(request, 401, message)
        return dataclasses.replace(response, headers=response.headers + _CHALLENGE)


class KnownKeys(NamedTuple):
    """The keys that requests may have.

    Attributes:
        every: all of them; empty = requests need none.
        admins: those of operators.
    """

    every: list[str]
    admins: list[str]


def read_api_keys(
    path: Path | None, environ: Mapping[str, str], given: Sequence[str] = ()
) -> KnownKeys:
    """Returns the given keys and those of a file, one a line (blank lines and those that begin with
    # are skipped), else the one in the environment's API_KEY or VLLM_API_KEY. Behind a key of the
    file, the word "admin" makes it an operator's.

    Raises:
        ConfigurationError: the file cannot be read, or holds no key or one with a blank in it.
    """
    keys = [("--api-key", key) for key in given]
    admins: list[str] = []
    if path is not None:
        for line in _read_keys(path):
            key, _, mark = line.partition(" ")
            if mark.strip() == _ADMIN:
                admins.append(key)
            keys.append((str(path), key if mark.strip() == _ADMIN else line))
    elif not keys:
        found = [(name, environ.get(name, "").strip()) for name in _VARIABLES]
        keys = [(name, key) for name, key in found if key][:1]
    for source, key in keys:
        if not (key.isascii() and key.isprintable()) or " " in key:
            # The key itself must not appear in a log.
            raise ConfigurationError(
                f"{source}: an API key is visible ASCII without blanks; in a file, only the word "
                f"{_ADMIN} may follow it"
            )
    return KnownKeys([key for _, key in keys], admins)


def _read_keys(path: Path) -> list[str]:
    try:
        # Some editors begin a file with a byte order mark.
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the API keys in {path}: {error}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigurationError(f"{path} holds no API key")
    return keys


def _given_keys(request: Request) -> list[str]:
    """Returns the keys of a request, which may come in several fields, "" where one holds none."""
    fields = request.headers.by_name
    given = [fields[name] for name in _KEY_FIELDS if name in fields]
    authorization = fields.get("authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(" ")
        # One space or several (RFC 9110 11.4). Nothing else is taken off: `str.strip` would take
        # bytes that are blanks in Latin-1.
        given.insert(0, key.strip(" ") if scheme.lower() == "bearer" else "")
    return given


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
