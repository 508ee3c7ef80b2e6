"""Answers what scripts from other origins may do (the Fetch standard's CORS protocol).

The settings are those of OpenVINO Model Server: lists separated by commas, "*" for anything.
"""

from __future__ import annotations

from fastovms.http.routing.messages import HeaderPairs, Request

_PREFLIGHT_MAX_AGE = "600"  # seconds; browsers cap it between 600 and 86400


class CorsPolicy:
    """Implements `dispatch.CrossOrigin`.

    Args:
        origins: "*", or origins such as "https://example.org, http://localhost:3000"; "" = none.
        methods, headers: "*", or names. With "*", what a preflight asks for is granted by name,
            since browsers leave the Authorization header out of a wildcard.
        credentials: whether scripts may send cookies. Only for listed origins: browsers refuse it
            together with the wildcard.

    Attributes:
        any_origin: whether `origins` has "*".
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
        return self.any_origin or origin in self._origins

    def response_fields(self, request: Request) -> HeaderPairs:
        """Returns the fields that any answer to this request has."""
        origin = request.headers.by_name.get("origin")
        if self.any_origin:
            if origin is None:
                return ()
            return (("Access-Control-Allow-Origin", "*"), _EXPOSED, *self._credentials)
        if not self._origins:
            return ()  # then no answer depends on who asks
        if origin is None or origin not in self._origins:
            return _VARIES
        allowed = ("Access-Control-Allow-Origin", origin)
        return (allowed, _EXPOSED, *_VARIES, *self._credentials)

    def preflight_fields(self, request: Request) -> HeaderPairs | None:
        """Returns the further fields of the answer to a preflight; None = this OPTIONS request is
        none."""
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
