"""Finds the handler for a method and a path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote

from fastovms.http.routing.messages import Handler


class Match(NamedTuple):
    """What answers a path: the handler, the pattern as it was registered, and the pattern's
    parameters."""

    handler: Handler
    pattern: str
    path_params: dict[str, str]


class MethodNotAllowed(NamedTuple):
    """The path exists, for other methods; `allowed` is the Allow field's value."""

    allowed: str


class _Pattern:
    """A path with `{name}` parts, each one segment, of which one may be `{name:path}`: one segment
    or more."""

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
    """Routes by pattern. Fixed paths come before patterns, patterns in the order of `add`.

    Attributes:
        more_to_come: whether routes are still being added, so that an unknown path may yet be one
            of them.
        pending: answers a POST to an unknown path while there are more routes to come; None = such
            a path does not exist.
    """

    def __init__(self) -> None:
        self.more_to_come = False
        self.pending: Handler | None = None
        self._fixed: dict[str, dict[str, Match]] = {}
        self._patterns: list[tuple[_Pattern, dict[str, Handler]]] = []

    def add(self, method: str, pattern: str, handler: Handler) -> None:
        """Registers a handler; GET serves HEAD too.

        Args:
            pattern: "/v1/models", "/v1/models/{id}" or "/v1/models/{id:path}". A `{id}` is one
                segment of the path, a `{id:path}` one or more. Segments are percent-decoded after
                they are told apart (RFC 3986 2.4), so either may hold a slash that came as %2F.
        """
        if not pattern.startswith("/"):
            raise ValueError(f"route {pattern!r} must start with '/'")
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
        """Yields the method and the pattern of every route, without the HEAD that GET serves."""
        for pattern, fixed in self._fixed.items():
            yield from ((method, pattern) for method in fixed if method != "HEAD")
        for known, handlers in self._patterns:
            yield from ((method, known.text) for method in handlers if method != "HEAD")

    def match(self, method: str, raw_path: str) -> Match | MethodNotAllowed | None:
        """Returns the route of a path; None = there is no such path."""
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
        """Returns the Allow field's value for a path; None = there is no such path. "*" stands for
        the whole server."""
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
