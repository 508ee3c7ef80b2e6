"""The series at which each alert fires and does not fire, as unit tests of promtool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml

from tests.paths import ROOT

OBSERVABILITY: Final = ROOT / "deploy" / "observability"
ALERTS: Final = OBSERVABILITY / "alerts.yml"
SERVER: Final = 'instance="box:8000", job="fastovms"'
MODEL: Final = f'{SERVER}, model_name="m"'
FIRST_TOKENS: Final = "fastovms_time_to_first_token_seconds_bucket"
ANSWERS: Final = "fastovms_http_requests_total"


class AlertCase(NamedTuple):
    """An alert.

    Attributes:
        at: the time at which it fires with the series of `firing`, and does not with those of
            `quiet`. Series are values of each minute in promtool's notation.
        summary: its text then.
        of_model: whether its labels include the model.
    """

    alert: str
    at: str
    summary: str
    firing: Mapping[str, str]
    quiet: Mapping[str, str]
    of_model: bool = False


def _buckets(slow: bool) -> dict[str, str]:
    counts = {"5": "0x20" if slow else "0+60x20", "10": "0+60x20", "+Inf": "0+60x20"}
    return {f'{FIRST_TOKENS}{{{MODEL}, le="{le}"}}': values for le, values in counts.items()}


CASES: Final = (
    AlertCase(
        "FastovmsDown",
        "3m",
        "box:8000 does not answer /metrics",
        {f"up{{{SERVER}}}": "0x10"},
        {f"up{{{SERVER}}}": "1x10"},
    ),
    AlertCase(
        "FastovmsNotReady",
        "12m",
        "box:8000 has served no model for ten minutes",
        {f"up{{{SERVER}}}": "1x20"},
        {f"up{{{SERVER}}}": "1x20", f"fastovms_model_info{{{MODEL}}}": "1x20"},
    ),
    AlertCase(
        "FastovmsRequestsWaiting",
        "6m",
        "7 requests wait for m on box:8000",
        {f"fastovms_num_requests_waiting{{{MODEL}}}": "7x10"},
        {f"fastovms_num_requests_waiting{{{MODEL}}}": "7 7 7 0 7 7 7 0 7 7 7"},
        of_model=True,
    ),
    AlertCase(
        "FastovmsKvCacheFull",
        "3m",
        "The KV cache of m on box:8000 is 97% full",
        {f"fastovms_kv_cache_usage_perc{{{MODEL}}}": "0.97x10"},
        {f"fastovms_kv_cache_usage_perc{{{MODEL}}}": "0.95x10"},
        of_model=True,
    ),
    AlertCase(
        "FastovmsPreemptions",
        "15m",
        "m on box:8000 computes sequences again for want of KV blocks",
        {f"fastovms_num_preemptions_total{{{MODEL}}}": "0+1x20"},
        {f"fastovms_num_preemptions_total{{{MODEL}}}": "5x20"},
        of_model=True,
    ),
    AlertCase(
        "FastovmsSlowFirstToken",
        "15m",
        "One first token in twenty of m on box:8000 takes 9.75s",
        _buckets(slow=True),
        _buckets(slow=False),
        of_model=True,
    ),
    AlertCase(
        "FastovmsServerErrors",
        "15m",
        "10% of the answers of box:8000 are server errors",
        {
            f'{ANSWERS}{{{SERVER}, status="200"}}': "0+90x20",
            f'{ANSWERS}{{{SERVER}, status="500"}}': "0+10x20",
        },
        {
            f'{ANSWERS}{{{SERVER}, status="200"}}': "0+90x20",
            f'{ANSWERS}{{{SERVER}, status="400"}}': "0+10x20",
        },
    ),
    AlertCase(
        "FastovmsStoreFailures",
        "4m",
        "Responses and conversations of box:8000 are not kept",
        {f"fastovms_state_failures_total{{{SERVER}}}": "0 0 1 1 1"},
        {f"fastovms_state_failures_total{{{SERVER}}}": "3x10"},
    ),
    AlertCase(
        "FastovmsRestarts",
        "5m",
        "box:8000 has started 3 times in a quarter of an hour",
        {f"process_start_time_seconds{{{SERVER}}}": "1 2 3 4 4 4"},
        {f"process_start_time_seconds{{{SERVER}}}": "1 2 2 2 2 2"},
    ),
)


def rules() -> dict[str, dict[str, Any]]:
    """Returns the rule of each alert."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def unit_tests() -> dict[str, object]:
    """Returns the input of `promtool test rules`."""
    return {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [test for case in CASES for test in _tests_of(case, rules()[case.alert])],
    }


def _tests_of(case: AlertCase, rule: dict[str, Any]) -> Iterator[dict[str, object]]:
    labels = {"instance": "box:8000", "job": "fastovms", **rule["labels"]}
    if case.of_model:
        labels["model_name"] = "m"
    fired = {
        "exp_labels": labels,
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }
    for series, expected in ((case.firing, [fired]), (case.quiet, [])):
        yield {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [
                {"alertname": case.alert, "eval_time": case.at, "exp_alerts": expected}
            ],
        }
