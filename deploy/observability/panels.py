"""Lists the panels of the dashboard with their expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

OF_MODEL: Final = 'model_name=~"$model_name",instance=~"$instance"'
OF_INSTANCE: Final = 'instance=~"$instance"'
QUANTILES: Final = (0.99, 0.95, 0.9, 0.5)


class Line(NamedTuple):
    """An expression of a panel, and the label of its line."""

    legend: str
    expression: str


class Panel(NamedTuple):
    """A panel.

    Attributes:
        unit: a unit of Grafana.
        kind: "timeseries" or "heatmap".
    """

    title: str
    text: str
    unit: str
    lines: Sequence[Line]
    kind: str = "timeseries"


def rate(series: str, labels: str = OF_MODEL) -> str:
    return f"rate(fastovms_{series}{{{labels}}}[$__rate_interval])"


def total(series: str, labels: str = OF_MODEL, by: str = "") -> str:
    """Returns the sum of a counter's rates."""
    return f"sum{f' by({by})' if by else ''} ({rate(series, labels)})"


def increase(series: str, by: str) -> str:
    return f"sum by({by}) (increase(fastovms_{series}{{{OF_MODEL}}}[$__rate_interval]))"


def gauge(series: str, labels: str = OF_MODEL) -> str:
    return f"fastovms_{series}{{{labels}}}"


def share(part: str, whole: str, labels: str = OF_MODEL) -> str:
    return f"{total(part, labels)} / {total(whole, labels)}"


def latency(title: str, text: str, histogram: str, labels: str = OF_MODEL) -> Panel:
    """Returns the quantiles and the mean of a histogram of seconds."""
    buckets = total(f"{histogram}_bucket", labels, by="le")
    lines = [
        Line(f"P{quantile * 100:.0f}", f"histogram_quantile({quantile}, {buckets})")
        for quantile in QUANTILES
    ]
    mean = Line("mean", share(f"{histogram}_sum", f"{histogram}_count", labels))
    return Panel(title, text, "s", [*lines, mean])


def heatmap(title: str, text: str, histogram: str) -> Panel:
    line = Line("{{le}}", increase(f"{histogram}_bucket", by="le"))
    return Panel(title, text, "none", [line], "heatmap")


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Requests and tokens": (
        latency(
            "E2E request latency",
            "From the arrival of a request to its last token.",
            "e2e_request_latency_seconds",
        ),
        Panel(
            "Token throughput",
            "Tokens of prompts computed, and tokens generated.",
            "short",
            [
                Line("prompt tokens/s", total("prompt_tokens_total")),
                Line("generated tokens/s", total("generation_tokens_total")),
            ],
        ),
        latency(
            "Time to first token",
            "From the arrival of a request to its first token, the queue included.",
            "time_to_first_token_seconds",
        ),
        latency(
            "Inter-token latency",
            "Between two tokens of a sample.",
            "inter_token_latency_seconds",
        ),
        latency(
            "Time per output token",
            "The mean between the tokens of a sample, told when it has ended.",
            "request_time_per_output_token_seconds",
        ),
        Panel(
            "Finish reason",
            "Samples that ended, by their finish reason.",
            "short",
            [
                Line(
                    "{{finished_reason}}",
                    increase("request_success_total", by="finished_reason"),
                )
            ],
        ),
        heatmap("Request prompt length", "Tokens of prompts.", "request_prompt_tokens"),
        heatmap("Request generation length", "Tokens generated.", "request_generation_tokens"),
        Panel(
            "Max generation tokens",
            "Tokens of the longest sample of each prompt, in the mean.",
            "short",
            [
                Line(
                    "tokens",
                    share(
                        "request_max_num_generation_tokens_sum",
                        "request_max_num_generation_tokens_count",
                    ),
                )
            ],
        ),
    ),
    "Scheduler and cache": (
        Panel(
            "Scheduler state",
            "Sequences in the running batch, and sequences that wait.",
            "short",
            [
                Line("{{model_name}} running", gauge("num_requests_running")),
                Line("{{model_name}} waiting", gauge("num_requests_waiting")),
            ],
        ),
        Panel(
            "Cache utilization",
            "The share of the KV cache in use. Near 1 sequences are put back, and computed again.",
            "percentunit",
            [Line("{{model_name}} {{instance}}", gauge("kv_cache_usage_perc"))],
        ),
        Panel(
            "Queue time",
            "Seconds that requests waited to run, each second.",
            "s",
            [Line("queue", rate("request_queue_time_seconds_sum"))],
        ),
        Panel(
            "Requests prefill and decode time",
            "Seconds that finished requests spent in each phase, each second.",
            "s",
            [
                Line("prefill", rate("request_prefill_time_seconds_sum")),
                Line("decode", rate("request_decode_time_seconds_sum")),
            ],
        ),
        Panel(
            "Prefix cache hits",
            "The share of prompt tokens that were found in the cache.",
            "percentunit",
            [Line("hits", share("prefix_cache_hits_total", "prefix_cache_queries_total"))],
        ),
        Panel(
            "Preemptions",
            "Sequences that were put back because no KV block was left.",
            "short",
            [Line("{{model_name}}", rate("num_preemptions_total"))],
        ),
        latency("Engine steps", "How long the engine's steps take.", "step_seconds"),
    ),
    "Drafts and grammars": (
        Panel(
            "Draft acceptance",
            "The share of drafted tokens that were right.",
            "percentunit",
            [
                Line(
                    "accepted",
                    share(
                        "spec_decode_num_accepted_tokens_total",
                        "spec_decode_num_draft_tokens_total",
                    ),
                )
            ],
        ),
        Panel(
            "Tokens a draft",
            "Tokens of a verified draft, and those of them that were right.",
            "short",
            [
                Line(
                    "drafted",
                    share("spec_decode_num_draft_tokens_total", "spec_decode_num_drafts_total"),
                ),
                Line(
                    "accepted",
                    share("spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total"),
                ),
            ],
        ),
        Panel(
            "Grammars in trial",
            "Grammars of clients that are tried, or wait for it.",
            "short",
            [
                Line("{{model_name}} running", gauge("num_grammars_running")),
                Line("{{model_name}} waiting", gauge("num_grammars_waiting")),
            ],
        ),
        Panel(
            "Grammar trials",
            "Trials of grammars, those that ended their process, and grammars turned away.",
            "short",
            [
                Line("trials", total("grammar_trials_total")),
                Line("deaths", total("grammar_trial_deaths_total")),
                Line("turned away", total("grammar_overloads_total")),
            ],
        ),
    ),
    "Embeddings and rerank": (
        Panel(
            "Texts",
            "Texts a second that become vectors, and pairs of texts that are scored.",
            "short",
            [Line("{{model_name}}", total("encoder_texts_total", by="model_name"))],
        ),
        Panel(
            "Batch size",
            "Texts computed together, in the mean.",
            "short",
            [Line("texts", share("encoder_batch_size_sum", "encoder_batch_size_count"))],
        ),
        Panel(
            "Padding",
            "Tokens a second that are computed only to fill batches up.",
            "short",
            [
                Line(
                    "{{model_name}} tokens/s",
                    total("encoder_padding_tokens_total", by="model_name"),
                )
            ],
        ),
    ),
    "HTTP and the process": (
        Panel(
            "Answers",
            "Requests answered, by status; 499: the client left before its answer began.",
            "reqps",
            [Line("{{status}}", total("http_requests_total", OF_INSTANCE, by="status"))],
        ),
        Panel(
            "Connections",
            "Open connections, and TLS handshakes that are not over.",
            "short",
            [
                Line("{{instance}} open", gauge("http_connections", OF_INSTANCE)),
                Line("{{instance}} handshakes", gauge("http_handshakes", OF_INSTANCE)),
            ],
        ),
        Panel(
            "Traffic",
            "Bodies received, and bytes written.",
            "Bps",
            [
                Line("received", total("http_received_bytes_total", OF_INSTANCE)),
                Line("sent", total("http_sent_bytes_total", OF_INSTANCE)),
            ],
        ),
        latency(
            "Event loop lag",
            "How late the event loop comes to a timer.",
            "loop_stall_seconds",
            OF_INSTANCE,
        ),
        Panel(
            "Stored responses",
            "Responses and conversations kept, and responses in the background.",
            "short",
            [
                Line("{{instance}} kept", gauge("state_objects", OF_INSTANCE)),
                Line("{{instance}} in the background", gauge("background_responses", OF_INSTANCE)),
            ],
        ),
        Panel(
            "Store failures",
            "Operations of the store that failed, each second.",
            "short",
            [Line("{{instance}}", rate("state_failures_total", OF_INSTANCE))],
        ),
        Panel(
            "Size of the store",
            "Bytes of what is kept.",
            "bytes",
            [Line("{{instance}}", gauge("state_bytes", OF_INSTANCE))],
        ),
        Panel(
            "Memory and processor",
            "Resident memory, and cores in use.",
            "short",
            [
                Line("{{instance}} bytes", f"process_resident_memory_bytes{{{OF_INSTANCE}}}"),
                Line(
                    "{{instance}} cores",
                    f"rate(process_cpu_seconds_total{{{OF_INSTANCE}}}[$__rate_interval])",
                ),
            ],
        ),
    ),
}
