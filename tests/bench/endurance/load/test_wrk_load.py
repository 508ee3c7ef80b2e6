from __future__ import annotations

import pytest

from bench.endurance.load.wrk_load import WrkOutcome, read_output

OUTPUT = """Running 1440m test @ http://127.0.0.1:8000/v1/completions
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   302.18ms  841.38ms   5.15s    92.52%
    Req/Sec   388.33    182.11     0.86k    65.03%
  18835 requests in 1.00m, 10.48MB read
{errors}Requests/sec:    313.91
answers: 18830, refused: 5
latency: p50 101.5 ms, p99 4711.0 ms, longest 5150.2 ms
"""


@pytest.mark.parametrize(
    ("errors", "num_lost"),
    [("", 0), ("  Socket errors: connect 1, read 20, write 300, timeout 4000\n", 4321)],
)
def test_output_of_wrk_is_parsed(errors: str, num_lost: int) -> None:
    outcome = WrkOutcome()
    read_output(OUTPUT.format(errors=errors), outcome)
    assert (outcome.num_answers, outcome.num_refused, outcome.num_lost) == (18830, 5, num_lost)
    assert (outcome.p50, outcome.p99, outcome.longest) == (101.5, 4711.0, 5150.2)
