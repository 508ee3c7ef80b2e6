"""Runs the same requests through the engine and `openvino_genai.ContinuousBatchingPipeline`.

Compare them in float32 throughout (`EXACT`): with a rounded KV cache, bf16 products or quantised
activations the two batch shapes round differently, and a near-tie would say nothing about the
engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai

from fastovms.engine.engine import Engine
from fastovms.params import GenerationRequest, SamplingParams
from tests.engine import engines
from tests.engine.engines import Outputs

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}


def run_reference(
    model_dir: Path,
    prompts: list[list[int]],
    num_tokens: int,
    *,
    properties: Mapping[str, str] = EXACT,
    max_num_seqs: int = 256,
    **settings: object,
) -> list[openvino_genai.GenerationOutput]:
    """Generates greedily unless `settings` of its GenerationConfig say otherwise."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 1
    scheduler.max_num_seqs = max_num_seqs
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        str(model_dir), scheduler, "CPU", dict(properties)
    )
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    for name, value in settings.items():
        setattr(config, name, value)
    handles = [
        pipeline.add_request(i, ov.Tensor(np.array([prompt], np.int64)), config)
        for i, prompt in enumerate(prompts)
    ]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    return [handle.read_all()[0] for handle in handles]


def run(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> Outputs:
    """Runs prompts, whose numbers are the ids of their requests."""
    requests = [GenerationRequest(str(i), prompt, params) for i, prompt in enumerate(prompts)]
    return engines.run(engine, *requests)
