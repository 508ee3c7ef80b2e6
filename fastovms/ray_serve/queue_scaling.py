"""Decides how many replicas there are by the queues of the servers in them, as an autoscaling
policy of Ray Serve."""

from __future__ import annotations

from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

_COUNTED: Final = ("fastovms_num_requests_running", "fastovms_num_requests_waiting")


def queue_lengths(metrics: str) -> dict[str, float]:
    """Returns how many sequences run and how many wait to, over all models of one server, by the
    names of the metrics.

    Args:
        metrics: what `/metrics` answers.
    """
    lines = [line for line in metrics.splitlines() if line.startswith(_COUNTED)]
    lengths = dict.fromkeys(_COUNTED, 0.0)
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            lengths[sample.name] += sample.value
    return lengths


def replicas_for_queues(context: Any) -> tuple[float, dict[str, Any]]:
    """Returns as many replicas as bring each to `target_ongoing_requests`, and no state.

    It is Ray's own rule with the servers' counts in place of Ray's: one request may be several
    sequences, and a background response runs when its request is long answered. Requests that Ray
    has not given to any replica count too. Ray applies bounds, delays and factors to the result.

    Args:
        context: a `ray.serve.config.AutoscalingContext`.
    """
    metrics = context.aggregated_metrics or {}
    in_servers = sum(sum(metrics.get(name, {}).values()) for name in _COUNTED)
    total = in_servers + (context.total_queued_requests or 0)
    return total / context.config.target_ongoing_requests, {}
