"""Tests that the pages generated from the code are current and complete."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from docs import generate
from tests.real_server import NAME, start_server, stop_server


@pytest.mark.parametrize("name", generate.PAGES)
def test_the_page_is_current(name: str):
    current = (generate.DOCS / name).read_text()
    assert current == generate.PAGES[name](), "run python -m docs.generate"


def test_stale_page_is_reported_and_rewritten(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    pages = {"flags.md": lambda: "# All flags\n", "metrics.md": lambda: "# Metrics\n"}
    monkeypatch.setattr(generate, "PAGES", pages)
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "flags.md").write_text("# Flags\n")
    capsys.readouterr()
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "not current: flags.md\n"
    assert (tmp_path / "flags.md").read_text() == "# Flags\n"
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        name: make() for name, make in pages.items()
    }


def test_route_without_an_operation_is_found(monkeypatch):
    router = generate._router()
    del router.operations["GET", "/v1/models"]
    monkeypatch.setattr(generate, "_router", lambda: router)
    with pytest.raises(SystemExit, match="GET', '/v1/models'"):
        generate.endpoints_page()


def test_metrics_of_a_running_server_are_on_the_page():
    """With their types and labels."""
    rows = dict(
        re.findall(r"^\| `(\w+)` \| (\w+ \| .*?) \|", generate.metrics_page(), re.MULTILINE)
    )
    key = {"Authorization": "Bearer a"}
    server = start_server("--ovms-metrics", "--api-key", "a", "--requests-per-minute", "9")
    try:
        body = {"model": NAME, "prompt": "a"}
        assert server.send("POST", "/v1/completions", body, **key).status == 200
        scrape = server.send("GET", "/metrics", **key).body.decode()
        families = list(text_string_to_metric_families(scrape))
    finally:
        stop_server(server)
    scraped = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        scraped[name] = (family.type, labels)
    on_page = {
        name: (row.split(" | ")[0], set(re.findall(r"`(\w+)`", row))) for name, row in rows.items()
    }
    assert scraped == on_page
