"""Rate limits of API keys: requests and tokens per minute, and tokens per day.

Windows begin at each full minute or day in UTC. A request is refused once a window of its key is
used up. Tokens are counted while they are computed, so a running request is never cut and may
exceed the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fastovms.api.admin import KEY_LENGTH
from fastovms.api.dialect import ANTHROPIC, dialect_of, is_anthropics
from fastovms.errors import RateLimited
from fastovms.http.gates import KeyLimits
from fastovms.http.messages import HeaderPairs, Request

_GENERATING: Final = frozenset(
    (
        *("chat", "completions", "compact", "decisions", "embed", "embeddings", "generate"),
        *("messages", "rerank", "responses", "score", "transcriptions", "translations"),
    )
)
"""The last path segments of the routes whose requests count: those that run a model."""

_LONGEST_RETRY: Final = 60.0
"""The longest Retry-After, in seconds, that the clients of OpenAI and Anthropic wait for."""


class _Kind(NamedTuple):
    """A kind of limit.

    Attributes:
        field: its field in `KeyLimits`.
        seconds: the length of its window.
        words: its name in error messages.
    """

    field: str
    unit: str
    seconds: int
    words: str


_KINDS: Final = (
    _Kind("requests_per_minute", "requests", 60, "requests a minute"),
    _Kind("tokens_per_minute", "tokens", 60, "tokens a minute"),
    _Kind("tokens_per_day", "tokens", 86400, "tokens a day"),
)


class Window:
    """The use of one limit by one key in the current minute or day.

    Attributes:
        limit: the maximum; 0 = no limit, but the use is counted.
    """

    __slots__ = ("_number", "_used", "kind", "limit")

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.limit = 0
        self._used = 0
        self._number = 0

    def add(self, size: int, now: float) -> None:
        """Adds `size` units at the Unix time `now`; a negative size returns units."""
        self._used = max(0, self.used(now) + size)

    def used(self, now: float) -> int:
        """Returns the units used in the window that contains the Unix time `now`. If the clock has
        gone back, the newest window still counts."""
        number = int(now // self.kind.seconds)
        if number > self._number:
            self._number, self._used = number, 0
        return self._used

    def left(self, now: float) -> int:
        """Returns the units that remain at the Unix time `now`."""
        return max(0, self.limit - self.used(now))

    def seconds_left(self, now: float) -> float:
        """Returns the seconds from the Unix time `now` to the start of the next window."""
        return max(0.001, (self._number + 1) * self.kind.seconds - now)


class KeyBudget:
    """The remaining requests and tokens of one key; implements `http.messages.Budget`."""

    def __init__(self, clock: Callable[[], float], note_refusal: Callable[[str], None]) -> None:
        self._clock = clock
        self._note_refusal = note_refusal
        self.windows = [Window(kind) for kind in _KINDS]

    def set_limits(self, limits: KeyLimits) -> None:
        """Replaces the limits; units already used stay counted."""
        for window in self.windows:
            window.limit = getattr(limits, window.kind.field)

    def charge(self, num_tokens: int) -> None:
        """Counts computed tokens against the token limits."""
        now = self._clock()
        for window in self.windows[1:]:
            window.add(num_tokens, now)

    def admit(self, request: Request) -> None:
        """Counts a request and sets its rate limit headers. Raises RateLimited if a limit is used
        up."""
        if request.method != "POST" or request.route.rpartition("/")[2] not in _GENERATING:
            return
        now = self._clock()
        # Lines of a batch wait for tokens, and do not count as requests.
        is_counted = request.caller.priority is None
        limited = [window for window in self.windows if window.limit]
        asked = [each for each in limited if is_counted or each.kind.unit == "tokens"]
        full = [window for window in asked if not window.left(now)]
        if is_counted and not full:
            self.windows[0].add(1, now)
        request.answer_fields = _fields(request, limited, now)
        if not full:
            return
        last = max(full, key=lambda window: window.seconds_left(now))
        self._note_refusal(last.kind.field)
        seconds = last.seconds_left(now)
        if seconds > _LONGEST_RETRY:
            request.answer_fields += (("x-should-retry", "false"),)
        raise RateLimited(
            f"this API key has used its {last.limit} {last.kind.words}; retry in "
            f"{_duration(math.ceil(seconds))}",
            retry_after=seconds,
        )


class KeyBudgets(Collector):
    """The budgets of all keys with limits, and their metrics.

    Args:
        clock: returns the Unix time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._budgets: dict[str, KeyBudget] = {}
        self._refusals = {kind.field: 0 for kind in _KINDS}

    def find(self, tenant: str) -> KeyBudget | None:
        """Returns the budget of a tenant; None = the tenant's key has no limits."""
        return self._budgets.get(tenant)

    def set_limits(self, limits: Mapping[str, KeyLimits]) -> None:
        """Replaces the limits of all tenants. Keys that still have limits keep their used units."""
        before, self._budgets = self._budgets, {}
        for tenant, of_tenant in limits.items():
            budget = before.get(tenant) or KeyBudget(self._clock, self._note_refusal)
            budget.set_limits(of_tenant)
            self._budgets[tenant] = budget

    def _note_refusal(self, limit: str) -> None:
        self._refusals[limit] += 1

    def collect(self) -> Iterable[Metric]:
        refusals = CounterMetricFamily(
            "fastovms_rate_limited_requests",
            "Requests refused with 429 because a limit of their API key was reached",
            labels=["limit"],
        )
        for limit, number in self._refusals.items():
            refusals.add_metric([limit], number)
        yield refusals
        labels = ["key", "limit"]
        most = GaugeMetricFamily(
            "fastovms_key_limit",
            "Requests or tokens that an API key may use in a minute or a day; `key` begins the "
            "key's SHA-256 digest",
            labels=labels,
        )
        used = GaugeMetricFamily(
            "fastovms_key_used",
            "Requests or tokens that an API key has used in the current minute or day of UTC",
            labels=labels,
        )
        now = self._clock()
        for tenant, budget in self._budgets.items():
            for window in budget.windows:
                if window.limit:
                    values = [tenant[:KEY_LENGTH], window.kind.field]
                    most.add_metric(values, window.limit)
                    used.add_metric(values, window.used(now))
        yield from (most, used)


def _fields(request: Request, limited: Iterable[Window], now: float) -> HeaderPairs:
    """Returns the rate limit headers in the format of the client's API. For each unit, the limit
    with the fewest remaining units is shown."""
    shown: dict[str, Window] = {}
    for window in limited:
        unit = window.kind.unit
        if unit not in shown or window.left(now) < shown[unit].left(now):
            shown[unit] = window
    is_anthropic = dialect_of(request.path) is ANTHROPIC or is_anthropics(request)
    fields: list[tuple[str, str]] = []
    for unit, window in shown.items():
        seconds = window.seconds_left(now)
        limit, left = str(window.limit), str(window.left(now))
        if is_anthropic:
            end = datetime.fromtimestamp(math.ceil(now + seconds), UTC)
            start = f"anthropic-ratelimit-{unit}"
            reset = end.strftime("%Y-%m-%dT%H:%M:%SZ")
            fields += [(f"{start}-limit", limit), (f"{start}-remaining", left)]
            fields.append((f"{start}-reset", reset))
        else:
            fields += [
                (f"x-ratelimit-limit-{unit}", limit),
                (f"x-ratelimit-remaining-{unit}", left),
            ]
            fields.append((f"x-ratelimit-reset-{unit}", _duration(math.ceil(seconds))))
    if fields and "origin" in request.headers:
        names = ", ".join(("Retry-After", "x-should-retry", *(name for name, _ in fields)))
        fields.append(("Access-Control-Expose-Headers", names))
    return tuple(fields)


def _duration(seconds: int) -> str:
    """Formats seconds as OpenAI's header fields do: 5h3m0s, 6m0s, 17s."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return (
        (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"
    )
