"""What OpenVINO GenAI's pipeline says of a text is compared with what the exported graph says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.backends.genai import pipeline_check
from fastovms.backends.genai.pipeline_check import pipeline_comparison
from fastovms.backends.model_files.graph_check import NotComparable
from fastovms.backends.model_files.model_info import read_model_info
from fastovms.config.model_config import DEMO_MODEL
from tests.paths import TINY_VLM


def difference(model_dir: Path) -> float:
    return pipeline_comparison(model_dir, read_model_info(model_dir)).difference()


@pytest.mark.parametrize("model_dir", [DEMO_MODEL, TINY_VLM])
def test_a_pipeline_says_what_the_graph_says(model_dir: Path) -> None:
    assert difference(model_dir) < 1e-4


def test_a_process_that_crashes_says_nothing_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_check, "_PROCESS", "this")
    with pytest.raises(NotComparable, match="the process that does it has ended with code 0"):
        difference(DEMO_MODEL)


def test_an_answer_holds_for_the_files_that_it_was_found_with() -> None:
    language = pipeline_comparison(DEMO_MODEL, read_model_info(DEMO_MODEL))
    assert {path.name for path in language.files} == {"openvino_model.xml", "openvino_model.bin"}
    vision = pipeline_comparison(TINY_VLM, read_model_info(TINY_VLM))
    assert {path.stem for path in vision.files} == {
        "openvino_language_model",
        "openvino_text_embeddings_model",
    }
    assert all(path.is_file() for path in vision.files)
