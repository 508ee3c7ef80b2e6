"""Steps with look-ups and without them, in pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.models import write_model
from bench.random_models.shapes import SHAPES
from bench.replay.proposal_costs import measure
from fastovms.engine.model.compilation import load_model

NUM_PAIRS = 5


@pytest.mark.parametrize("num_streams", [1, 3])
def test_each_pair_has_a_step_with_look_ups_and_one_without(
    tmp_path: Path, num_streams: int
) -> None:
    write_model(SHAPES["tiny"], tmp_path)
    model = load_model(tmp_path)
    model.allocate_cache(64)
    kinds, engine = measure(model, 64, num_streams, NUM_PAIRS)
    for steps in kinds:
        assert len(steps.whole) == len(steps.inference) == NUM_PAIRS
        assert all(0 < part < whole for whole, part in zip(*steps, strict=True))
    assert len(engine.scheduler.running) == num_streams
    engine.check()
