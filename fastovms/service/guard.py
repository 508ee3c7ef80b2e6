"""Refuses requests without a key (401), or at a time at which the server cannot serve them
(503)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fastovms.api.admin.status import DOCS_PATHS, HEALTH_PATHS, ServerStatus
from fastovms.api.wire.error_responses import render_error
from fastovms.config.http_config import SecurityConfig
from fastovms.http.gates.auth import ApiKeys, read_api_keys
from fastovms.http.routing.messages import Request, Response


class Guard:
    """An `http.messages.Check`. Health paths need no key, nor does the description of the API.

    Args:
        open_paths: further paths that anybody may ask at any time, such as those of the page.

    Raises:
        ConfigurationError: the keys cannot be read.
    """

    def __init__(
        self,
        status: ServerStatus,
        config: SecurityConfig,
        environ: Mapping[str, str],
        open_paths: Collection[str] = (),
    ) -> None:
        self._status = status
        self._config = config
        self._environ = environ
        self._open_paths = frozenset(open_paths)
        self._keys = self._read_keys()

    def __call__(self, request: Request) -> Response | None:
        if request.path in self._open_paths:
            return None
        if self._keys is None:
            request.is_admin = request.is_local
        else:
            refusal = self._keys(request)
            if refusal is not None:
                return refusal
        return self._status.admit(request)

    @property
    def needs_key(self) -> bool:
        return self._keys is not None

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants of those who may ask; "" where no key is needed."""
        return frozenset(("",)) if self._keys is None else self._keys.tenants

    def reload(self) -> None:
        """Reads the keys again.

        Raises:
            ConfigurationError: they cannot be read; the old ones stay in use.
        """
        self._keys = self._read_keys()

    def _read_keys(self) -> ApiKeys | None:
        keys = read_api_keys(self._config.api_key_file, self._environ, self._config.api_keys)
        exempt = (*HEALTH_PATHS, *(DOCS_PATHS if self._config.enable_docs else ()))
        return ApiKeys(keys.every, render_error, exempt, keys.admins) if keys.every else None
