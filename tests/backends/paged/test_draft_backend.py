"""Loading a draft model beside its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.models import write_model
from bench.random_models.shapes import SHAPES
from fastovms.backends.model_files.model_info import read_model_info
from fastovms.backends.paged.draft_backend import (
    DraftFiles,
    load_draft_model,
    read_draft_files,
)
from fastovms.backends.paged.paged_backend import PagedBackend
from fastovms.config.engine_config import EngineConfig
from fastovms.config.model_config import DEMO_MODEL
from fastovms.engine.drafting.draft_model import DraftModel
from fastovms.engine.scheduling.step_costs import StepCosts
from fastovms.errors import ConfigurationError
from fastovms.params import SamplingParams

LFM2 = Path(__file__).parents[2] / "models" / "architectures" / "lfm2"


@pytest.fixture(scope="module")
def draft_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("draft")
    write_model(SHAPES["tiny"], directory)
    return directory


def test_both_caches_share_the_memory(draft_dir: Path) -> None:
    info = read_model_info(DEMO_MODEL)

    def num_blocks(config: EngineConfig) -> int:
        backend = PagedBackend.load(DEMO_MODEL, info, config)
        return backend._engine.blocks.num_blocks

    alone = num_blocks(EngineConfig(cache_size=0.01))
    assert 0.5 * alone < num_blocks(EngineConfig(cache_size=0.01, draft_model=draft_dir)) < alone


def num_planned(draft: DraftModel) -> int:
    """The length of the first draft, where a step with more rows takes as long as one without."""
    costs = StepCosts()
    for num_rows in (1, 1, 1, 9, 9, 9):
        costs.learn(num_decodes=1, num_rows=num_rows, num_prefill_tokens=0, seconds=0.01)
    policy = draft.new_policy(SamplingParams())
    return policy.plan(10, costs, num_sequences=1, max_tokens=8).num_tokens


def test_its_cost_is_what_its_weights_say(draft_dir: Path) -> None:
    info = read_model_info(DEMO_MODEL)
    draft = load_draft_model(DraftFiles(draft_dir, info), DEMO_MODEL, info, EngineConfig())
    assert num_planned(draft) > 0
    twin = load_draft_model(DraftFiles(DEMO_MODEL, info), DEMO_MODEL, info, EngineConfig())
    assert num_planned(twin) == 0


def test_a_missing_directory_is_found_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastovms.backends.paged.paged_backend.read_files", None)
    config = EngineConfig(draft_model=tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="nowhere does not exist"):
        PagedBackend.load(DEMO_MODEL, read_model_info(DEMO_MODEL), config)


def test_another_vocabulary_is_a_configuration_error(
    draft_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabularies = {draft_dir: {b"a": 0, b"b": 1}, DEMO_MODEL: {b"a": 0, b"c": 1, b"b": 2}}
    monkeypatch.setattr(
        "fastovms.backends.paged.draft_backend._read_vocabulary", vocabularies.__getitem__
    )
    with pytest.raises(ConfigurationError, match="they differ in 2 tokens, such as 'c'"):
        read_draft_files(draft_dir, DEMO_MODEL)


def test_a_hybrid_model_cannot_draft(tmp_path: Path) -> None:
    for directory in (LFM2, DEMO_MODEL):
        for path in directory.iterdir():
            if not (tmp_path / path.name).exists():
                (tmp_path / path.name).symlink_to(path)
    draft = read_draft_files(tmp_path, DEMO_MODEL)
    with pytest.raises(ConfigurationError, match=r"states beside attention.* cannot draft"):
        load_draft_model(draft, DEMO_MODEL, read_model_info(DEMO_MODEL), EngineConfig())
