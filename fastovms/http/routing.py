"""Finds the handler of a request and runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from fastovms.http.gates import CorsPolicy
from fastovms.http.messages import Check, ErrorRenderer, Handler, HeaderPairs, Request, Response


class Match(NamedTuple):
    """A matched route: its handler, the registered pattern, and the pattern's parameters."""

    handler: Handler
    pattern: str
    path_params: dict[str, str]


class MethodNotAllowed(NamedTuple):
    """The path exists, for other methods; `allowed` is the Allow field's value."""

    allowed: str


class _Pattern:
    """A path with `{name}` parts, each one segment; one of them may be `{name:path}`, which matches
    one or more segments."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.segments = text.split("/")
        self.greedy: int | None = None
        for position, segment in enumerate(self.segments):
            if segment.endswith(":path}"):
                if self.greedy is not None:
                    raise ValueError(f"route {text!r}: only one part may be a path")
                self.greedy = position

    def match(self, segments: list[str]) -> dict[str, str] | None:
        surplus = len(segments) - len(self.segments)
        if surplus < 0 or (surplus and self.greedy is None):
            return None
        if surplus and self.greedy is not None:
            end = self.greedy + surplus + 1
            joined = "/".join(segments[self.greedy : end])
            segments = [*segments[: self.greedy], joined, *segments[end:]]
        params = {}
        for expected, segment in zip(self.segments, segments, strict=True):
            if expected[:1] == "{":
                if not segment:
                    return None
                params[expected[1:-1].removesuffix(":path")] = segment
            elif expected != segment:
                return None
        return params


class Router:
    """Finds routes by pattern. Fixed paths come before patterns, patterns in the order of `add`.

    Attributes:
        operations: the descriptions of routes, by method and pattern.
        more_to_come: whether routes are still being added, so that an unknown path may become
            known.
        pending: the handler for POST to an unknown path while more routes are to come; None = 404.
    """

    def __init__(self) -> None:
        self.operations: dict[tuple[str, str], Any] = {}
        self.more_to_come = False
        self.pending: Handler | None = None
        self._fixed: dict[str, dict[str, Match]] = {}
        self._patterns: list[tuple[_Pattern, dict[str, Handler]]] = []

    def add(self, method: str, pattern: str, handler: Handler, operation: Any = None) -> None:
        """Registers a handler; GET serves HEAD, too.

        Args:
            pattern: "/v1/models", "/v1/models/{id}" or "/v1/models/{id:path}". A `{id}` is one
                segment of the path, a `{id:path}` one or more. Segments are percent-decoded after
                splitting (RFC 3986 2.4), so either may contain a slash that was sent as %2F.
            operation: the route's description for OpenAPI; None = not described.
        """
        if not pattern.startswith("/"):
            raise ValueError(f"route {pattern!r} must start with '/'")
        if operation is not None:
            self.operations[method, pattern] = operation
        methods = (method, "HEAD") if method == "GET" else (method,)
        if "{" not in pattern:
            fixed = self._fixed.setdefault(pattern, {})
            fixed.update({name: Match(handler, pattern, {}) for name in methods})
            return
        for known, handlers in self._patterns:
            if known.text == pattern:
                handlers.update(dict.fromkeys(methods, handler))
                return
        self._patterns.append((_Pattern(pattern), dict.fromkeys(methods, handler)))

    def routes(self) -> Iterator[tuple[str, str]]:
        """Yields the method and the pattern of every route, without implied HEAD routes."""
        for pattern, fixed in self._fixed.items():
            yield from ((method, pattern) for method in fixed if method != "HEAD")
        for known, handlers in self._patterns:
            yield from ((method, known.text) for method in handlers if method != "HEAD")

    def match(self, method: str, raw_path: str) -> Match | MethodNotAllowed | None:
        """Returns the route of a path; None = unknown path."""
        found = self._match(method, raw_path)
        if found is None and self.more_to_come and self.pending is not None and method == "POST":
            return Match(self.pending, "", {})
        return found

    def _match(self, method: str, raw_path: str) -> Match | MethodNotAllowed | None:
        fixed = self._fixed.get(raw_path)
        if fixed is None:
            segments = raw_path.split("/")
            if "%" in raw_path:
                segments = [unquote(segment) for segment in segments]
                if not any("/" in segment for segment in segments):
                    fixed = self._fixed.get("/".join(segments))
            if fixed is None:
                return self._match_patterns(method, segments)
        found = fixed.get(method)
        return found if found is not None else MethodNotAllowed(_allow(fixed))

    def allowed(self, raw_path: str) -> str | None:
        """Returns the Allow field's value for a path; None = unknown path. "*" stands for the whole
        server."""
        outcome = None if raw_path == "*" else self.match("OPTIONS", raw_path)
        if isinstance(outcome, MethodNotAllowed):
            return outcome.allowed
        if raw_path != "*" and not self.more_to_come:
            return None
        every: set[str] = set().union(
            *self._fixed.values(), *(known for _, known in self._patterns)
        )
        return _allow(every)

    def _match_patterns(self, method: str, segments: list[str]) -> Match | MethodNotAllowed | None:
        allowed: set[str] = set()
        for pattern, handlers in self._patterns:
            params = pattern.match(segments)
            if params is None:
                continue
            if method in handlers:
                return Match(handlers[method], pattern.text, params)
            allowed.update(handlers)
        return MethodNotAllowed(_allow(allowed)) if allowed else None


def _allow(methods: Iterable[str]) -> str:
    return ", ".join(sorted({*methods, "OPTIONS"}))


class PathReader(Protocol):
    """Normalizes the spelling of paths."""

    def tidy(self, raw_path: str) -> str:
        """Returns the registered path, or the given one if it is not another spelling of a
        registered path. Idempotent."""

    def advice(self, raw_path: str, root: str, exists: Callable[[str], bool]) -> str:
        """Returns a hint for the 404 error of a path, such as the path that may be meant; "" =
        none.

        Args:
            root: the prefix of the path.
            exists: returns whether a path exists.
        """


class Dispatcher:
    """Finds the handler of each request, after checks.

    Args:
        render_error: formats errors in the API of the path.
        gates: checks that run first, for every request.
        authenticate: a check that runs before routing, so that clients without a key cannot probe
            for paths.
        checks: run after routing and before the body is read; not for GET.
        root_path: the prefix that a proxy may leave before every path, such as "/llm".
        paths: normalizes paths; None = no other spellings. All checks, including the gates, get the
            normalized path.
    """

    def __init__(
        self,
        router: Router,
        render_error: ErrorRenderer,
        *,
        gates: Sequence[Check] = (),
        authenticate: Check | None = None,
        checks: Sequence[Check] = (),
        cross_origin: CorsPolicy | None = None,
        root_path: str = "",
        paths: PathReader | None = None,
    ) -> None:
        self._router = router
        self._root_path = root_path
        self._paths = paths
        self._render_error = render_error
        self._gates = tuple(gates)
        self._authenticate = authenticate
        self._checks = tuple(checks)
        self._cross_origin = cross_origin

    def admit(self, request: Request) -> Handler | Response:
        """Returns the handler of a request, or a refusal. Sets the request's `route` and
        `path_params`, and normalizes its path, without the root path."""
        given = request.raw_path
        path = self._registered(given)
        if path != given:
            request.set_path(path)
        for gate in self._gates:
            refusal = gate(request)
            if refusal is not None:
                return refusal
        if request.method == "OPTIONS" and self._cross_origin is not None:
            fields = self._cross_origin.preflight_fields(request)
            if fields is not None:
                # A preflight cannot carry a key, so the answer does not reveal which paths exist.
                return Response(204, headers=fields)
        if self._authenticate is not None:
            refusal = self._authenticate(request)
            if refusal is not None:
                return refusal
        if request.method == "OPTIONS":
            return self._options(request, given)
        found = self._router.match(request.method, path)
        if found is None:
            return self._not_found(request, given)
        if isinstance(found, MethodNotAllowed):
            message = f"{request.method} is not allowed for {request.path}"
            return self.error(request, 405, message, (("Allow", found.allowed),))
        handler, request.route, request.path_params = found
        if request.method != "GET":
            for check in self._checks:
                refusal = check(request)
                if refusal is not None:
                    return refusal
        return handler

    def answer_fields(self, request: Request) -> HeaderPairs:
        """Returns the headers that are added to any answer to the request: those for browsers of
        other origins, and those of `Request.answer_fields`."""
        if self._cross_origin is None:
            return request.answer_fields
        return self._cross_origin.response_fields(request) + request.answer_fields

    def error(
        self, request: Request, status: int, message: str, headers: HeaderPairs = ()
    ) -> Response:
        """Returns an error of the HTTP layer in the format of the path's dialect. Also normalizes
        the path of a request that was not admitted."""
        path = self._registered(request.raw_path) if request.raw_path else ""
        if path != request.raw_path:
            request.set_path(path)
        response = self._render_error(request, status, message)
        if headers:
            response = dataclasses.replace(response, headers=response.headers + headers)
        return response

    def _registered(self, path: str) -> str:
        """Returns the normalized path without the root. Both steps are repeated, because each may
        enable the other; the result is idempotent."""
        before = None
        while path != before:
            before = path
            if self._root_path:
                path = self._below_root(path)
            if self._paths is not None:
                path = self._paths.tidy(path)
        return path

    def _below_root(self, path: str) -> str:
        """Returns the path after the root. All repetitions of the root are removed, so that the
        function is idempotent."""
        root, start = self._root_path, 0
        while path.startswith(root, start):
            end = start + len(root)
            if path[end : end + 1] not in ("", "/"):
                break
            start = end
        return path[start:] or "/"

    def _options(self, request: Request, given: str) -> Response:
        """Answers OPTIONS (RFC 9110 9.3.7)."""
        allowed = self._router.allowed(request.raw_path)
        if allowed is None:
            return self._not_found(request, given)
        return Response(204, headers=(("Allow", allowed),))

    def _not_found(self, request: Request, given: str) -> Response:
        """Returns the 404 for an unknown path. `given` is the path as the client sent it, including
        any root path."""
        message = f"no such path: {request.path}"
        if self._paths is not None:
            root = self._root_path if given.startswith(f"{self._root_path}/") else ""
            message += self._paths.advice(request.raw_path, root, self._exists)
        return self.error(request, 404, message)

    def _exists(self, path: str) -> bool:
        return isinstance(self._router.match("OPTIONS", path), MethodNotAllowed)
