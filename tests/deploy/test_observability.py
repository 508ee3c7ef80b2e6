"""Tests with a real Prometheus that scrapes a real server: the dashboard has data, and alerts fire
as described."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from socket import create_server
from typing import Any, NamedTuple

import pytest

from deploy.observability.dashboard import dashboard
from fastovms.server_config import DEMO_MODEL
from tests.deploy.alert_cases import ALERTS, CASES, OBSERVABILITY, rules, unit_tests
from tests.encoder_models import encoder_dir
from tests.paths import ROOT
from tests.real_server import NAME, Server, start_server, stop_server

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus is missing: apt-get install prometheus",
)

LOAD_SECONDS = 6.0
RATE_INTERVAL = "4s"
DEADLINE = 120.0

OF_VLLM = {
    "e2e_request_latency_seconds", "prompt_tokens", "generation_tokens",
    "inter_token_latency_seconds", "num_requests_running", "num_requests_waiting",
    "time_to_first_token_seconds", "kv_cache_usage_perc", "request_prompt_tokens",
    "request_generation_tokens", "request_success", "request_queue_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds",
    "request_max_num_generation_tokens", "request_time_per_output_token_seconds",
}  # fmt: skip
"""The metrics in the panels of vLLM's own dashboards, without their prefix."""

COMPLETION = {"model": NAME, "prompt": "Once upon a time", "max_tokens": 20}
CHAT = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
CHOICE = {"structured_outputs": {"choice": ["yes", "no"]}}
LOAD: tuple[tuple[str, dict[str, object]], ...] = (
    ("/v1/completions", COMPLETION),
    ("/v1/completions", {**COMPLETION, "stream": True, "num_assistant_tokens": 4}),
    ("/v1/completions", {**COMPLETION, "n": 3, "temperature": 1.0}),
    ("/v1/completions", {**COMPLETION, **CHOICE}),
    ("/v3/completions", {**COMPLETION, "stop": ["."]}),
    ("/v1/chat/completions", CHAT),
    ("/v3/chat/completions", {**CHAT, "stream": True}),
    ("/v1/responses", {"model": NAME, "input": "Hi", "max_output_tokens": 5}),
    ("/v1/responses", {"model": NAME, "input": "Hi", "background": True, "max_output_tokens": 5}),
    ("/v1/embeddings", {"model": "encoder", "input": ["a b c", "d"]}),
    ("/v1/completions", {**COMPLETION, "temperature": -1}),
    ("/v1/completions", {**COMPLETION, "model": "nobody"}),
    ("/nowhere", {}),
)


class Prometheus(NamedTuple):
    """A running Prometheus, with the time of its start."""

    url: str
    started: float

    def get(self, path: str, **query: object) -> Any:
        """Returns the data of an API answer."""
        text = urllib.parse.urlencode(query)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{text}", timeout=DEADLINE) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """Returns all values of an expression since the start."""
        found = self.get(
            "query_range", query=expression, start=self.started, end=time.time(), step=1
        )
        numbers = [float(value) for series in found["result"] for _, value in series["values"]]
        return [number for number in numbers if not math.isnan(number)]

    def wait_for(self, expression: str, least: float) -> None:
        deadline = time.monotonic() + DEADLINE
        while max(self.values(expression), default=-1.0) < least:
            assert time.monotonic() < deadline, expression
            time.sleep(0.1)


@contextmanager
def running_prometheus(target: str, directory: Path) -> Iterator[Prometheus]:
    """Runs Prometheus with the shipped configuration, which scrapes `target` once a second."""
    text = (OBSERVABILITY / "prometheus.yml").read_text()
    for old, new in (
        ("localhost:8000", target),
        ("_interval: 15s", "_interval: 1s"),
        ("- alerts.yml", f"- {ALERTS}"),
    ):
        assert old in text
        text = text.replace(old, new)
    config = directory / "prometheus.yml"
    config.write_text(text)
    with create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
         f"--web.listen-address={address}", "--log.level=error"],
    )  # fmt: skip
    prometheus = Prometheus(f"http://{address}", time.time())
    try:
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                prometheus.get("status/buildinfo")
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield prometheus
    finally:
        process.terminate()
        process.wait(DEADLINE)


def put_under_load(server: Server) -> None:
    """Sends requests of every kind for some seconds, several at a time."""

    def send(number: int) -> None:
        path, body = LOAD[number % len(LOAD)]
        status = server.post(path, json.dumps(body).encode())
        assert status in (200, 400, 404), (path, body, status)

    deadline = time.monotonic() + LOAD_SECONDS
    with ThreadPoolExecutor(4) as clients:
        while time.monotonic() < deadline:
            list(clients.map(send, range(len(LOAD))))


@contextmanager
def prometheus_of_a_busy_server(directory: Path) -> Iterator[Prometheus]:
    models = [f"--model={NAME}={DEMO_MODEL}", f"--model=encoder={encoder_dir()}"]
    server = start_server(*models, "--state-dir", str(directory / "state"))
    try:
        target = server.url.removeprefix("http://")
        with running_prometheus(target, directory) as prometheus:
            prometheus.wait_for('up{job="fastovms"}', 1.0)
            put_under_load(server)
            prometheus.wait_for("sum(fastovms_request_success_total)", 20)
            yield prometheus
    finally:
        stop_server(server)


def expressions() -> dict[str, str]:
    """Returns every expression of every panel by name, with variables as Grafana replaces them."""
    found = {}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"]
            for name, value in (
                ("$__rate_interval", RATE_INTERVAL), ("$model_name", ".*"), ("$instance", ".*"),
            ):  # fmt: skip
                text = text.replace(name, value)
            assert "$" not in text, text
            found[f"{panel['title']}: {target['legendFormat']}"] = text
    return found


def series_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:fastovms|process)_\w+|\bup\b", expression))


@pytest.mark.nightly
def test_prometheus_sees_a_server_under_load(tmp_path: Path) -> None:
    with prometheus_of_a_busy_server(tmp_path) as prometheus:
        check_expressions(prometheus)
        check_variables(prometheus)
        check_alerts(prometheus)


def check_expressions(prometheus: Prometheus) -> None:
    """Checks that every expression of every panel has data. Waits for the rarest, because the last
    requests of a short load may not be scraped yet."""
    missing = set(expressions().values())
    deadline = time.monotonic() + DEADLINE
    while missing and time.monotonic() < deadline:
        missing = {text for text in missing if not prometheus.values(text)}
        time.sleep(0.2)
    assert not missing


def check_alerts(prometheus: Prometheus) -> None:
    """Checks that every alert is evaluated over existing series, and that no alert of a fault fires
    for a healthy server."""
    [group] = prometheus.get("rules")["groups"]
    assert {rule["name"] for rule in group["rules"]} == {case.alert for case in CASES}
    for rule in group["rules"]:
        assert rule["health"] != "err", rule
        names = series_in(rule["query"])
        assert names, rule
        for name in names:
            assert prometheus.values(name), f"{rule['name']}: there is no {name}"
    firing = {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}
    assert not firing & {"FastovmsDown", "FastovmsNotReady", "FastovmsStoreFailures"}


def check_variables(prometheus: Prometheus) -> None:
    """The lists of models and instances are not empty."""
    queries = {
        variable["name"]: re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
        for variable in dashboard()["templating"]["list"]
        if variable["type"] == "query"
    }
    assert set(queries) == {"model_name", "instance"}
    for name, query in queries.items():
        assert query is not None
        assert query[2] == name
        values = prometheus.get(f"label/{name}/values", **{"match[]": query[1]})
        assert values, name


def test_the_dashboard_has_what_vllms_has() -> None:
    names = {name for text in expressions().values() for name in series_in(text)}
    drawn = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in names}
    assert {f"fastovms_{name}" for name in OF_VLLM} <= drawn


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_dashboard_is_current_with_its_table() -> None:
    command = [sys.executable, "-m", "deploy.observability.dashboard", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "write it anew"


@pytest.mark.parametrize(
    "arguments", [("rules", "alerts.yml"), ("config", "prometheus.yml")], ids=lambda a: a[0]
)
def test_promtool_takes_the_files(arguments: tuple[str, str]) -> None:
    promtool("check", arguments[0], str(OBSERVABILITY / arguments[1]))


def test_alerts_fire_when_they_should_and_else_not(tmp_path: Path) -> None:
    assert {case.alert for case in CASES} == set(rules())
    tests = tmp_path / "tests.json"
    tests.write_text(json.dumps(unit_tests()))
    promtool("test", "rules", str(tests))


def test_every_alert_has_severity_and_description() -> None:
    for name, rule in rules().items():
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert len(rule["annotations"]["description"]) > 100, name


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
