"""Tests of `fastovms/parts/doctor/examination.py`."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fastovms.app.catalog import ModelFinder
from fastovms.config import EncoderConfig, EngineConfig, HttpConfig
from fastovms.engine.model.devices import GIB, DeviceFacts, DeviceKind
from fastovms.errors import ConfigurationError
from fastovms.parts.doctor.examination import (
    INSTALLATION_CHECKS,
    MACHINE_CHECKS,
    MODEL_CHECKS,
    EncoderFacts,
    Finding,
    Level,
    ModelOnMachine,
    check_devices,
    check_encoder,
    examine,
    read_encoder,
    render,
    render_json,
)
from fastovms.parts.doctor.facts import (
    AddressFacts,
    DatabaseFacts,
    DirectoryFacts,
    InstallationFacts,
    MachineFacts,
    ModelFacts,
    RunFacts,
    SecretFacts,
    WeightTraffic,
    read_machine,
)
from fastovms.server_config import (
    DEMO_MODEL,
    ModelConfig,
    ModelSource,
    RepositoryConfig,
    Settings,
    StateConfig,
)
from tests.encoder_models import encoder_dir
from tests.image_models import diffusion_dir
from tests.speech_models import whisper_dir

FINE = MachineFacts(
    model="Xeon",
    flags=frozenset({"avx2", "avx512f", "avx512_vnni", "amx_int8"}),
    num_cpus=8,
    num_allowed=8,
    num_threads=8,
    quota=math.inf,
    threads_per_core=1,
    kinds={},
    governors={"performance": 8},
    num_numa_nodes=1,
    last_level_cache=GIB // 32,
    available_memory=16 * GIB,
    memory_limit_left=math.inf,
    load=0.5,
)


def found(facts: MachineFacts) -> list[tuple[Level, str, str, str]]:
    return [
        (finding.level, finding.topic, finding.text, finding.advice)
        for check in MACHINE_CHECKS
        for finding in check(facts)
    ]


def test_fine_machine_has_only_ok_findings() -> None:
    assert {level for level, *_ in found(FINE)} == {Level.OK}
    texts = " ".join(text for _, _, text, _ in found(FINE))
    assert "Xeon: AVX2, AVX-512, AVX-512 VNNI, AMX INT8" in texts
    assert "8 logical processors; the engine computes with 8 threads" in texts


@pytest.mark.parametrize(
    ("changes", "level", "topic", "words"),
    [
        ({"flags": frozenset({"sse2"})}, Level.WARNING, "processor", "none of AVX2"),
        ({"flags": frozenset({"avx2"})}, Level.NOTE, "processor", "without VNNI"),
        ({"flags": frozenset({"avx2", "avx_vnni"})}, Level.OK, "processor", "AVX-VNNI"),
        (
            {"kinds": {"performance": 4, "efficiency": 4}},
            Level.NOTE,
            "cores",
            "several kinds share each step",
        ),
        ({"threads_per_core": 2}, Level.OK, "cores", "2 to a core"),
        ({"num_allowed": 2}, Level.NOTE, "limits", "2 of 8 processors"),
        ({"quota": 1.5, "num_threads": 2}, Level.WARNING, "limits", "1.5 processors' time"),
        ({"quota": 1.0, "num_threads": 1}, Level.NOTE, "limits", "1 thread compute"),
        ({"quota": 8.0}, Level.OK, "limits", "8 processors' time"),
        ({"available_memory": GIB // 2}, Level.WARNING, "memory", "537 MB"),
        ({"memory_limit_left": 2.0 * GIB}, Level.OK, "memory", "this process's limits"),
        ({"load": 9.25}, Level.NOTE, "load", "9.2 tasks want 8 processors"),
        ({"governors": {"powersave": 8}}, Level.WARNING, "governor", "powersave"),
        ({"governors": {}}, Level.OK, "governor", "none to be seen"),
        ({"num_numa_nodes": 2}, Level.NOTE, "NUMA", "2 nodes"),
    ],
)
def test_finding_has_level_topic_and_text(
    changes: Mapping[str, object], level: Level, topic: str, words: str
) -> None:
    findings = found(replace(FINE, **changes))  # type: ignore[arg-type]
    assert [
        text for of, where, text, _ in findings if (of, where) == (level, topic) and words in text
    ]
    assert all(advice for of, _, _, advice in findings if of is Level.WARNING)


HERE = Path("/here")


def directory(
    *, exists: bool = True, is_writable: bool = True, free: int = 9 * GIB
) -> DirectoryFacts:
    return DirectoryFacts("cache", HERE, "--cache-dir", exists, is_writable, free)


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (directory(), Level.OK, "/here is there, with 9.66 GB free"),
        (directory(exists=False), Level.OK, "is made at the first start"),
        (directory(is_writable=False), Level.PROBLEM, "cannot be written"),
        (directory(free=GIB // 2), Level.WARNING, "537 MB free"),
        (DirectoryFacts("cache", None, "--cache-dir"), Level.NOTE, "every start compiles"),
        (SecretFacts("API keys", HERE, 0o640, True), Level.OK, "/here (640)"),
        (SecretFacts("API keys", HERE, 0o644, True), Level.WARNING, "every user"),
        (SecretFacts("API keys", HERE, 0o600, False), Level.PROBLEM, "cannot be read"),
        (SecretFacts("API keys", HERE, None, False), Level.PROBLEM, "there is no /here"),
        (AddressFacts("a:1", None), Level.OK, "a:1 is free"),
        (AddressFacts("a:1", "in use"), Level.WARNING, "listened on now: in use"),
        (DatabaseFacts("postgresql://h/d", None), Level.OK, "answers"),
        (DatabaseFacts("postgresql://h/d", "refused"), Level.PROBLEM, "h/d: refused"),
    ],
)
def test_installation_finding_has_level_and_text(
    facts: DirectoryFacts | SecretFacts | AddressFacts | DatabaseFacts, level: Level, words: str
) -> None:
    installation = InstallationFacts(
        (facts,) if isinstance(facts, DirectoryFacts) else (),
        (facts,) if isinstance(facts, SecretFacts) else (),
        (facts,) if isinstance(facts, AddressFacts) else (),
        facts if isinstance(facts, DatabaseFacts) else None,
    )
    [finding] = [found for check in INSTALLATION_CHECKS for found in check(installation)]
    assert finding.level is level
    assert words in finding.text


RUN = RunFacts("f32, f16 cache", "measured", 512, 10_000.0, 100, 0.02, cache_limit=2_000_000_000)
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


def model_checks_found(facts: ModelOnMachine) -> dict[str, Finding]:
    return {finding.topic: finding for check in MODEL_CHECKS for finding in check(facts)}


def with_model(**changes: object) -> ModelOnMachine:
    return replace(FACTS, model=replace(MODEL, **changes))  # type: ignore[arg-type]


def test_model_findings_have_the_ceiling_and_its_share() -> None:
    assert FACTS.bytes_per_token == 1_000_000_000 + 1_000_000
    assert FACTS.ceiling == pytest.approx(99.9, abs=0.01)
    assert FACTS.tokens_per_second == 50
    texts = {topic: finding.text for topic, finding in model_checks_found(FACTS).items()}
    assert texts == {
        "model": "m: 1.2 GB of weights, contexts of 4096 tokens",
        "KV cache": "10 KB a token: 41 MB for one context of 4096 tokens, and at most 2 GB for "
        "all, with the prefix cache",
        "needs": "1.74 GB for one stream: 1.2 GB weights, 41 MB KV cache, 500 MB the rest",
        "backend": "paged: it can run the model",
        "tuning": "f32, f16 cache, 512 tokens a step: measured",
        "reads": "a token reads 1 GB of weights, and 10 KB of the cache for each token before it",
        "bandwidth": "8 threads read 100.0 GB/s of memory: at most 99.9 tokens a second for one "
        "sequence",
        "run": "50 tokens a second of one sequence in a short run, without drafts: 50% of what "
        "the memory gives",
    }
    assert {finding.level for finding in model_checks_found(FACTS).values()} == {Level.OK}


def test_packed_weights_are_a_part_of_the_memory() -> None:
    found = model_checks_found(with_model(run=replace(RUN, packed_weights=300_000_000)))
    assert found["packed weights"].text.startswith("300 MB for the decode kernels")
    assert found["needs"].text == (
        "2.04 GB for one stream: 1.2 GB weights, 300 MB packed weights, 41 MB KV cache, "
        "500 MB the rest. With --memory-profile once: 841 MB, and slower prompts"
    )


def test_packed_weights_of_unknown_size_are_mentioned() -> None:
    found = model_checks_found(with_model(run=replace(RUN, packed_weights=None)))
    assert found["needs"].text.startswith("1.74 GB for one stream: 1.2 GB weights, 41 MB KV cache")
    assert "Packed weights for the decode kernels" in found["needs"].text


def test_run_far_below_the_ceiling_is_noted() -> None:
    slow = with_model(run=replace(RUN, seconds_per_token=0.1))
    assert model_checks_found(slow)["run"].level is Level.NOTE
    assert "fastovms tune" in model_checks_found(slow)["run"].advice


def test_weights_in_the_cache_have_no_ceiling() -> None:
    small = with_model(traffic=WeightTraffic(1000, 0, 0, 1.0))
    assert small.ceiling is None
    assert "memory sets no bound" in model_checks_found(small)["bandwidth"].text
    assert "of what the memory gives" not in model_checks_found(small)["run"].text


def test_model_that_does_not_fit_is_a_problem() -> None:
    full = replace(FACTS, machine=replace(FINE, available_memory=1_000_000_000))
    assert model_checks_found(full)["model"].level is Level.PROBLEM
    assert model_checks_found(with_model(device="GPU"))["model"].level is Level.OK
    assert with_model(device="GPU").ceiling is None


def test_checks_without_measurement_are_left_out() -> None:
    quiet = replace(with_model(run=replace(RUN, seconds_per_token=None)), bandwidth=None)
    assert set(model_checks_found(quiet)) == {
        *("model", "KV cache", "needs", "backend", "tuning", "reads"),
    }
    genai = replace(with_model(backend="genai", run=None), bandwidth=None)
    assert set(model_checks_found(genai)) == {"model", "backend", "reads"}
    assert model_checks_found(genai)["backend"].level is Level.NOTE


ENCODER_CHECKS_FACTS = EncoderFacts("bge", Path("bge"), "embeddings", "mean", 512, 4_000_000, "CPU")


def read(directory: Path, **encoder: str) -> EncoderFacts | None:
    config = ModelConfig(directory, ("m",), encoder=EncoderConfig(**encoder))  # type: ignore[arg-type]
    return read_encoder(config, directory)


@pytest.mark.parametrize(
    ("num_labels", "wanted", "task", "pooling"),
    [
        (0, "auto", "embeddings", "cls"),
        (0, "mean", "embeddings", "mean"),
        (1, "auto", "rerank", None),
    ],
)
def test_facts_of_encoders_have_task_and_pooling(
    num_labels: int, wanted: str, task: str, pooling: str | None
) -> None:
    directory = encoder_dir(num_labels)
    facts = read(directory, pooling=wanted)
    assert facts is not None
    assert (facts.name, facts.task, facts.pooling) == ("m", task, pooling)
    assert (facts.max_model_len, facts.device) == (128, "CPU")
    assert facts.weights_size == (directory / "openvino_model.bin").stat().st_size


@pytest.mark.parametrize(
    ("directory", "task", "longest"),
    [(diffusion_dir, "image_generation", 77), (whisper_dir, "speech2text", 448)],
)
def test_facts_of_speech_and_images_have_their_task(
    directory: Callable[[], Path], task: str, longest: int
) -> None:
    facts = read(directory())
    assert facts is not None
    assert (facts.task, facts.pooling, facts.max_model_len) == (task, None, longest)
    weights = directory().rglob("*model.bin")
    assert facts.weights_size == sum(path.stat().st_size for path in weights)


def test_encoder_without_its_task_or_files_is_refused(tmp_path: Path) -> None:
    assert read(DEMO_MODEL) is None
    with pytest.raises(ConfigurationError, match="--task rerank"):
        read(encoder_dir(), task="rerank")
    directory = shutil.copytree(encoder_dir(), tmp_path / "m")
    (directory / "openvino_tokenizer.xml").unlink()
    with pytest.raises(ConfigurationError, match="openvino_tokenizer"):
        read(directory)


@pytest.mark.parametrize(
    ("memory", "device", "level"),
    [
        (10_000_000, "CPU", Level.OK),
        (4_100_000, "CPU", Level.PROBLEM),
        (4_100_000, "GPU", Level.OK),
    ],
)
def test_encoder_that_does_not_fit_is_a_problem(memory: int, device: str, level: Level) -> None:
    machine = replace(read_machine(), available_memory=memory)
    fit, task = check_encoder(replace(ENCODER_CHECKS_FACTS, device=device), machine)
    assert (fit.topic, fit.level) == ("model", level)
    assert fit.text.startswith("bge: 4 MB of weights, texts of 512 tokens")
    assert (task.level, task.text) == (
        Level.OK,
        "embeddings with mean pooling; the model was not run",
    )


QUIET = (
    Settings.of(EngineConfig, cache_dir="")
    | Settings.of(HttpConfig, port=0)
    | Settings.of(StateConfig, state_dir=":memory:")
)


@pytest.mark.parametrize(
    ("engine", "chosen"),
    [
        (EngineConfig(), ["AUTO chooses GPU.1: Arc is a discrete GPU"]),
        (
            EngineConfig(enable_lora=True),
            ["AUTO chooses CPU: adapters are served on the CPU only"],
        ),
        (EngineConfig(device="CPU"), []),
    ],
)
def test_devices_and_the_chosen_one_are_listed(engine: EngineConfig, chosen: list[str]) -> None:
    devices = [
        DeviceFacts("CPU", DeviceKind.CPU, "Xeon"),
        DeviceFacts("GPU.0", DeviceKind.OTHER, fault="it does not answer"),
        DeviceFacts("GPU.1", DeviceKind.DISCRETE, "Arc", 16 * GIB, "25.1"),
        DeviceFacts("NPU", DeviceKind.NPU),
    ]
    findings = list(check_devices(devices, engine))
    assert {finding.topic for finding in findings} == {"device"}
    assert [finding.text for finding in findings] == [
        "CPU: Xeon, processor",
        "GPU.0: it does not answer",
        "GPU.1: Arc, discrete GPU, 17.2 GB, driver 25.1",
        "NPU: unnamed, NPU",
        *chosen,
    ]
    levels = [finding.level for finding in findings]
    assert levels[:4] == [Level.OK, Level.WARNING, Level.OK, Level.OK]


def finder(settings: Settings) -> Callable[[ModelSource], ModelConfig | None]:
    return ModelFinder.of(settings.section(RepositoryConfig), os.environ).find_here


@pytest.mark.slow
def test_examination_covers_machine_model_and_configuration() -> None:
    examination = examine(ModelSource(), QUIET, finder(QUIET), runs=False)
    topics = {finding.topic for finding in examination.findings}
    assert {"processor", "cores", "memory", "address", "cache directory", "model"} <= topics
    assert not examination.has_problems
    found = json.loads(render_json(examination))
    assert found["has_problems"] is False
    assert found["devices"][0]["name"] == "CPU"
    assert found["machine"]["num_cpus"] >= 1
    assert found["model"]["backend"] == "paged"
    assert found["bytes_per_token"] > 0
    assert found["tokens_per_second"] is None


def test_examination_of_an_encoder_has_its_task() -> None:
    examination = examine(ModelSource(str(encoder_dir(1))), QUIET, finder(QUIET), runs=True)
    assert not examination.has_problems
    [task] = [finding.text for finding in examination.findings if finding.topic == "task"]
    assert task.startswith("rerank")
    assert json.loads(render_json(examination))["model"]["task"] == "rerank"


@pytest.mark.parametrize(
    ("location", "level", "words"),
    [
        ("no/such/place", Level.PROBLEM, "no/such/place"),
        ("org/name", Level.NOTE, "the first start downloads it"),
    ],
)
def test_examination_of_a_missing_model_names_it(
    tmp_path: Path, location: str, level: Level, words: str
) -> None:
    settings = QUIET | Settings.of(RepositoryConfig, path=tmp_path)
    examination = examine(ModelSource(location), settings, finder(settings), runs=True)
    [finding] = [found for found in examination.findings if found.topic == "model"]
    assert finding.level is level
    assert words in finding.text
    assert examination.has_problems == (level is Level.PROBLEM)


FINDINGS = [
    Finding(Level.OK, "cores", "8 of them"),
    Finding(Level.WARNING, "governor", "powersave", "another one"),
]


def test_findings_are_rendered_as_text_with_a_summary() -> None:
    assert render(FINDINGS, in_colour=False).splitlines() == [
        "ok       cores: 8 of them",
        "warning  governor: powersave",
        "         -> another one",
        "",
        "1 warning",
    ]
    assert render(FINDINGS[:1], in_colour=False).endswith("\nall is well")
    assert render(FINDINGS, in_colour=True).startswith("\x1b[32mok     \x1b[0m  cores: 8 of them\n")
