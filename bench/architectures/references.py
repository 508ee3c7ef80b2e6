"""Creates small models with random weights and generates texts with transformers in float32, one at
a time. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench.architectures.configs import ARCHITECTURES

PROMPT_LENGTHS: Final = (5, 110)
NUM_TOKENS: Final = 24

_GAIN: Final = 1.5
"""The standard deviation of matrices. It is large enough for attention to differ from a mean over
all tokens, and for logits to differ."""

_SPREAD: Final = 0.1
"""The standard deviation of norms and biases."""


def random_model(name: str, vocab_size: int, *, narrow: bool) -> Any:
    """Returns a model whose weights make an error in any of its parts visible in the logits. The
    weights are exact in half precision."""
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        architecture.model_type, **architecture.config(vocab_size, narrow=narrow)
    )
    config.dtype = torch.float32
    # Other implementations leave out soft caps.
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape)
            if parameter.dim() < 2:
                parameter += _SPREAD * noise
            else:
                parameter.copy_(noise * _GAIN / parameter.shape[-1] ** 0.5)
            parameter.copy_(parameter.half())
    return model.eval()


def make_prompts(vocab_size: int, num_prompts: int) -> list[list[int]]:
    """Returns prompts of several lengths. Each repeats itself, so prompt lookup finds drafts."""
    rng = np.random.default_rng(0)
    lengths = np.linspace(*PROMPT_LENGTHS, num_prompts).astype(int)
    return [
        np.resize(rng.integers(3, vocab_size, max(3, length // 2)), length).tolist()
        for length in lengths
    ]


def generate(model: Any, prompt: Sequence[int], *, use_cache: bool) -> dict[str, list[Any]]:
    """Returns the greedy tokens and their log probabilities."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=None,
        do_sample=False,
        eos_token_id=None,
        output_logits=True,
        use_cache=use_cache,
        return_dict_in_generate=True,
    )
    token_ids = output.sequences[0, len(prompt) :].tolist()
    rows = torch.log_softmax(torch.cat(output.logits).double(), -1)
    logprobs = [float(row[token_id]) for row, token_id in zip(rows, token_ids, strict=True)]
    return {"prompt": list(prompt), "token_ids": token_ids, "logprobs": logprobs}
