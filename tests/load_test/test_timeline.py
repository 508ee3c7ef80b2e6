from __future__ import annotations

import pytest

from fastovms.client.request_failed import RequestFailed
from fastovms.load_test.timeline import Load, Timeline

TOKEN = b'{"choices": [{"text": "a"}]}'


def recorded(*events: tuple[bytes, float]) -> Timeline:
    timeline = Timeline(started=10.0)
    for data, now in events:
        timeline.record(data, now)
    return timeline


def test_a_stream() -> None:
    role = b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
    usage = b'{"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 5}}'
    timeline = recorded(
        (role, 10.5), (TOKEN, 11.0), (TOKEN, 11.5), (TOKEN, 13.0), (usage, 14.0), (b"[DONE]", 15.0)
    )
    assert timeline.time_to_first_token == 1.0
    assert timeline.gaps == [0.5, 1.5]
    assert timeline.latency == 3.0
    assert (timeline.prompt_tokens, timeline.num_tokens) == (4, 5)
    assert timeline.time_per_output_token == 0.5


def test_without_usage_events_are_counted() -> None:
    timeline = recorded((TOKEN, 11.0), (TOKEN, 12.0))
    assert (timeline.prompt_tokens, timeline.completion_tokens) == (None, None)
    assert timeline.num_tokens == 2


def test_one_token_has_no_time_per_later_token() -> None:
    assert recorded((TOKEN, 11.0)).time_per_output_token is None


def test_an_error_in_the_stream() -> None:
    with pytest.raises(RequestFailed, match="gone"):
        recorded((b'{"error": "gone"}', 11.0))


def test_a_load_lasts_until_the_last_request_has_ended_however_it_did() -> None:
    hanging = Timeline(started=9.0, failure=RequestFailed("timeout", ""), ended=609.0)
    assert Load.of([recorded((TOKEN, 11.0), (TOKEN, 13.0)), hanging]).seconds == 600.0


def test_where_no_end_is_known_a_load_lasts_to_the_last_output() -> None:
    failed = Timeline(started=9.0, failure=RequestFailed("timeout", ""))
    load = Load.of([recorded((TOKEN, 11.0), (TOKEN, 13.0)), failed])
    assert load.seconds == 4.0
    assert (load.num_tokens, load.num_events) == (2, 2)
    assert load.tokens_per_second == 0.5


def test_an_empty_load() -> None:
    assert Load.of([]).tokens_per_second == 0
