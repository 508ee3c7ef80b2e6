"""Tests of the choice of a backend for a model, and of the reasons for a refusal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.models import write_draft_head
from bench.random_models.shapes import SHAPES
from fastovms.app import choice
from fastovms.app import paged as paged_backend
from fastovms.engine.model.paging import TransformedGraph
from fastovms.errors import ConfigurationError
from fastovms.parts.genai import backend as genai_backend
from fastovms.parts.genai.backend import GenaiBackend
from fastovms.server_config import DEMO_MODEL
from tests.backends.genai.test_real import far_off, load, running
from tests.paths import TINY_VLM

IDS = np.arange(0, 1536, 2)


async def test_the_paged_backend_takes_no_images() -> None:
    with pytest.raises(ConfigurationError, match="images, which --backend paged does not"):
        load(TINY_VLM, backend="paged")


@pytest.mark.parametrize(
    ("model_dir", "config", "message"),
    [
        (DEMO_MODEL, {"draft_model": Path("/nowhere")}, "/nowhere does not exist"),
        (DEMO_MODEL, {"draft_model": TINY_VLM}, "tiny_vlm takes images"),
        (TINY_VLM, {"draft_model": DEMO_MODEL}, "--draft-model cannot be used for tiny_vlm"),
        (
            DEMO_MODEL,
            {"draft_model": DEMO_MODEL, "enable_prompt_lookup": True},
            "--draft-model and --enable-prompt-lookup cannot be used together",
        ),
    ],
)
async def test_unsupported_draft_options_are_refused(
    model_dir: Path, config: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(model_dir, backend="genai", **config)


async def test_heads_do_not_draft_on_the_genai_backend(tmp_path: Path) -> None:
    write_draft_head(replace(SHAPES["tiny"], hidden_size=192, vocab_size=1536), tmp_path, IDS)
    with pytest.raises(ConfigurationError, match="draft head, which the genai backend does not"):
        load(DEMO_MODEL, backend="genai", draft_model=tmp_path)


async def test_a_hybrid_model_has_no_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid = TransformedGraph(has_other_state=True)
    monkeypatch.setattr(choice, "read_transformed", lambda *_: hybrid)
    with pytest.raises(ConfigurationError, match=r"--draft-model cannot be used .* hybrid model"):
        load(DEMO_MODEL, backend="genai", draft_model=DEMO_MODEL)


async def test_a_model_that_neither_runs_has_both_reasons(tmp_path: Path) -> None:
    for file in DEMO_MODEL.iterdir():
        (tmp_path / file.name).symlink_to(file)
    graph = (tmp_path / "openvino_model.xml").read_text()
    (tmp_path / "openvino_model.xml").unlink()
    (tmp_path / "openvino_model.xml").write_text(graph.replace('"logits"', '"scores"'))
    with pytest.raises(
        ConfigurationError, match=r"no output named logits.*; and .* GenAI's pipeline"
    ):
        load(tmp_path)
    with pytest.raises(ConfigurationError, match="no output named logits") as error:
        load(tmp_path, backend="paged")
    assert "genai" not in str(error.value)


async def test_a_model_that_paging_gets_wrong_runs_on_genai(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(paged_backend, "paging_comparison", lambda files: far_off("paging"))
    async for backend in running(load(DEMO_MODEL)):
        assert isinstance(backend, GenaiBackend)
    assert "paging leaves out part of its graph" in caplog.text


async def test_a_model_that_both_get_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_backend, "paging_comparison", lambda files: far_off("paging"))
    monkeypatch.setattr(genai_backend, "pipeline_comparison", lambda *_: far_off("pipeline"))
    reason = r"paging leaves out part of its graph .*; and .* pipeline leaves out part of its graph"
    with pytest.raises(ConfigurationError, match=reason):
        load(DEMO_MODEL)
    with pytest.raises(ConfigurationError, match="pipeline leaves out part of its graph"):
        load(DEMO_MODEL, backend="genai")
