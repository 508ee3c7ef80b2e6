"""Declares how the server runs as a service, and where its state is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """How the process deals with whoever runs it. Times in seconds.

    Attributes:
        engine_timeout: an engine that has work and finishes no step for so long hangs; 0 = it
            may take any time.
        failure_grace: between the failure of an engine, which health checks then report, and the
            end of the process.
        drain_delay: how long, at shutdown, requests are still taken while readiness says no, so
            that balancers may notice first.
        log_level: "trace" (the same as "debug"), "debug", "info", "warning" or "error".
        log_file: appended to, opened anew on SIGHUP; None = stderr.
        log_format: "text" or "json".
        access_log: a line a request, "text" or "json"; "off" = none.
        access_log_file: where it is written, like `log_file`; None = where the log goes.
        access_log_skip: paths that get no line in the access log, separated by commas; "" = none.
        ovms_metrics: export the request counters of OpenVINO Model Server too.
        otlp_traces_endpoint: the collector that gets spans, "http://host:4318"; None = the one
            that OpenTelemetry's variables name, if they do.
    """

    engine_timeout: float = 60.0
    failure_grace: float = 2.0
    drain_delay: float = 0.0
    log_level: str = "info"
    log_file: Path | None = None
    log_format: str = "text"
    access_log: str = "text"
    access_log_file: Path | None = None
    access_log_skip: str = "/health,/ping,/ready,/v2/health/live,/v2/health/ready,/metrics"
    ovms_metrics: bool = False
    otlp_traces_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class StateConfig:
    """What is kept of responses and conversations beyond their requests.

    Attributes:
        enable_store: keep anything at all.
        state_dir: directory of responses, files, batches and cached prompts; ":memory:" = none, and
            responses last until the process ends; None = systemd's or the user's.
        state_url: of a PostgreSQL database that other servers may share, which keeps responses and
            conversations in place of the directory.
        password_file: the password for it; None = systemd's credential, or wherever libpq finds it.
        num_connections: to that database.
        listen_url: of the same database for the connection that hears of changes, where `state_url`
            leads through a pooler that does not let sessions listen; None = `state_url`.
        lease: seconds for which a response in the background is its server's, if not renewed.
        max_age: seconds since the last use.
        max_objects: responses and conversations.
        max_bytes: the bytes of all of them with their items.
        max_background: responses that run without a client.
        resume: go on with those that were cut off.
    """

    enable_store: bool = True
    state_dir: str | None = None
    state_url: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    num_connections: int = 4
    listen_url: str | None = field(default=None, repr=False)
    lease: float = 7.0
    max_age: float = 30 * 24 * 3600.0
    max_objects: int = 100_000
    max_bytes: int = 512 * 1024 * 1024
    max_background: int = 64
    resume: bool = True
