from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fastovms.doctor.finding import Finding, Level
from fastovms.doctor.model_checks import MODEL_CHECKS, ModelOnMachine
from fastovms.doctor.model_facts import ModelFacts, RunFacts
from fastovms.doctor.weight_traffic import WeightTraffic
from tests.doctor.test_machine_checks import FINE

RUN = RunFacts("f32, f16 cache", "measured", 512, 10_000.0, 100, 0.02)
MODEL = ModelFacts(
    name="m",
    path=Path("m"),
    max_model_len=4096,
    device="CPU",
    traffic=WeightTraffic(1_200_000_000, 200_000_000, 0, 1.0),
    backend="paged",
    backend_reason="it can run the model",
    run=RUN,
)
FACTS = ModelOnMachine(MODEL, FINE, 100e9)


def found(facts: ModelOnMachine) -> dict[str, Finding]:
    return {finding.topic: finding for check in MODEL_CHECKS for finding in check(facts)}


def with_model(**changes: object) -> ModelOnMachine:
    return replace(FACTS, model=replace(MODEL, **changes))  # type: ignore[arg-type]


def test_the_ceiling_and_its_share() -> None:
    assert FACTS.bytes_per_token == 1_000_000_000 + 1_000_000
    assert FACTS.ceiling == pytest.approx(99.9, abs=0.01)
    assert FACTS.tokens_per_second == 50
    texts = {topic: finding.text for topic, finding in found(FACTS).items()}
    assert texts == {
        "model": "m: 1.2 GB of weights, contexts of 4096 tokens",
        "backend": "paged: it can run the model",
        "tuning": "f32, f16 cache, 512 tokens a step: measured",
        "reads": "a token reads 1 GB of weights, and 10 KB of the cache for each token before it",
        "bandwidth": "8 threads read 100.0 GB/s of memory: at most 99.9 tokens a second for one "
        "sequence",
        "run": "50 tokens a second of one sequence in a short run, without drafts: 50% of what "
        "the memory gives",
    }
    assert {finding.level for finding in found(FACTS).values()} == {Level.OK}


def test_a_run_far_below_the_ceiling_is_noted() -> None:
    slow = with_model(run=replace(RUN, seconds_per_token=0.1))
    assert found(slow)["run"].level is Level.NOTE
    assert "fastovms tune" in found(slow)["run"].advice


def test_experts() -> None:
    sparse = with_model(traffic=WeightTraffic(10_000_000_000, 0, 8_000_000_000, 0.125))
    assert sparse.model.traffic.per_token == 3_000_000_000
    assert "reads 3 GB of weights (12% of its experts' 8 GB)" in found(sparse)["reads"].text


def test_weights_in_the_cache_have_no_ceiling() -> None:
    small = with_model(traffic=WeightTraffic(1000, 0, 0, 1.0))
    assert small.ceiling is None
    assert "memory sets no bound" in found(small)["bandwidth"].text
    assert "of what the memory gives" not in found(small)["run"].text


def test_a_model_that_does_not_fit_is_a_problem() -> None:
    full = replace(FACTS, machine=replace(FINE, available_memory=1_000_000_000))
    assert found(full)["model"].level is Level.PROBLEM
    assert found(with_model(device="GPU"))["model"].level is Level.OK
    assert with_model(device="GPU").ceiling is None


def test_a_run_without_a_figure_is_noted() -> None:
    assert "too slow" in found(with_model(run=replace(RUN, seconds_per_token=None)))["run"].text


def test_what_is_not_measured_is_not_told() -> None:
    quiet = replace(with_model(run=replace(RUN, seconds_per_token=None)), bandwidth=None)
    assert set(found(quiet)) == {"model", "backend", "tuning", "reads"}
    genai = replace(with_model(backend="genai", run=None), bandwidth=None)
    assert set(found(genai)) == {"model", "backend", "reads"}
    assert found(genai)["backend"].level is Level.NOTE
