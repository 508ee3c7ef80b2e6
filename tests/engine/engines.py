"""Builds engines with the parts that a server adds, and runs requests on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from fastovms.app.paged import engine_extensions
from fastovms.config import EngineConfig
from fastovms.engine.engine import Engine
from fastovms.engine.model.model import Model
from fastovms.grammar.compiler import GrammarCompiler
from fastovms.params import GenerationOutput, GenerationRequest, SamplingParams
from fastovms.parts.drafts.draft_model import DraftModel
from tests.engine.fake_model import FakeModel

Outputs = dict[tuple[str, int], list[GenerationOutput]]
"""Token ids by request and sample."""

Texts = dict[tuple[str, int], list[int]]


def full_engine(
    model: Model,
    config: EngineConfig,
    *,
    grammars: GrammarCompiler | None = None,
    draft_model: DraftModel | None = None,
    **rest: Any,
) -> Engine:
    """Returns an engine with drafts, beam searches and grammars.

    Args:
        rest: further arguments of `Engine`.
    """
    extensions = engine_extensions(model, config, grammars, draft_model)
    return Engine(model, config, extensions=extensions, **rest)


def fake_engine(
    model: FakeModel | None = None,
    *,
    num_blocks: int = 64,
    max_model_len: int = 64,
    draft_model: DraftModel | None = None,
    **config: Any,
) -> Engine:
    """Returns an engine over a fake model whose steps take no time."""
    model = model or FakeModel()
    model.allocate_cache(num_blocks)
    return full_engine(
        model,
        EngineConfig(**{"suffix_index_tokens": 500, **config}),
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        draft_model=draft_model,
        new_seed=lambda: 0,
        clock=lambda: 0.0,
    )


def drafted_engine(
    make_draft: Callable[..., DraftModel],
    model: FakeModel | None = None,
    *,
    draft_tokens: int = 2048,
    draft_len: int = 1000,
    num_blocks: int = 256,
    max_model_len: int = 256,
    enable_prompt_lookup: bool = False,
    **config: Any,
) -> Engine:
    """Returns an engine over a fake model with a draft model, without prompt lookup."""
    settings = EngineConfig(**config)
    draft = make_draft(
        max_model_len=draft_len,
        max_num_batched_tokens=settings.token_budget,
        enable_prefix_caching=settings.enable_prefix_caching,
    )
    draft.allocate_cache(draft_tokens)
    return fake_engine(
        model,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        draft_model=draft,
        enable_prompt_lookup=enable_prompt_lookup,
        **config,
    )


def greedy(request_id: str, prompt: Sequence[int], **params: Any) -> GenerationRequest:
    """Returns a request whose text is not drawn, unless `params` say so."""
    return GenerationRequest(request_id, prompt, SamplingParams(**{"temperature": 0, **params}))


def run(engine: Engine, *requests: GenerationRequest) -> Outputs:
    """Runs requests beside those that the engine has, and checks its invariants after each step."""
    outputs: Outputs = defaultdict(list)
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for request_id, output in engine.step():
            outputs[request_id, output.index].append(output)
        engine.check()
    return outputs


def text(outputs: list[GenerationOutput]) -> list[int]:
    """Returns the tokens of a sample that has not failed."""
    assert not any(output.error for output in outputs)
    return [token_id for output in outputs for token_id in output.token_ids]


def texts(engine: Engine, *requests: GenerationRequest) -> Texts:
    """Runs requests as `run` does and returns the tokens of all samples."""
    return {key: text(outputs) for key, outputs in run(engine, *requests).items()}
