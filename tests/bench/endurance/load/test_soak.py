from __future__ import annotations

import pytest

from bench.endurance.load.soak import slope
from bench.endurance.load.soak_requests import REQUESTS_AN_HOUR, SoakMix


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(0, 100), (1, 102), (2, 104)], 2),
        ([(0, 100), (1, 100), (2, 100)], 0),
        ([(0, 100), (1, 110), (2, 100)], 0),
        ([(1, 3), (3, 1)], -1),
    ],
)
def test_the_slope_is_that_of_the_whole(points: list[tuple[float, float]], expected: float) -> None:
    assert slope(points) == pytest.approx(expected)


def test_an_hour_has_its_requests_of_all_kinds() -> None:
    mix = SoakMix(1)
    arrivals = mix.arrivals(1)
    assert len(arrivals) == REQUESTS_AN_HOUR
    assert all(0 <= arrival < 1 for arrival in arrivals)
    assert list(arrivals) == sorted(arrivals)
    requests = [mix.make() for _ in range(REQUESTS_AN_HOUR)]
    kinds = {request.kind for request in requests}
    assert kinds == {
        *("completion", "chat", "response", "stored response", "tokenize"),
        *("mistake", "health", "metrics"),
    }
    assert any(request.leaves for request in requests)


def test_requests_name_what_was_made_before() -> None:
    mix = SoakMix(1)
    encoded = [request.encode("resp_1") for request in (mix.make() for _ in range(1000))]
    assert any(b'"previous_response_id": "resp_1"' in data for data in encoded)
    assert any(data.startswith(b"GET /v1/responses/resp_1 HTTP/1.1") for data in encoded)
    assert not any(b"{id}" in data for data in encoded)
