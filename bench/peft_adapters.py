"""Creates tiny adapters (LoRA) with PEFT for a tiny model of `tests/models/architectures`, and
saves the texts that transformers generates in float32 with the merged adapters.

Runs in an environment with torch, transformers and peft: `python -m bench.peft_adapters
tests/models`. The model is created again from its seed; if its texts differ from its own
references, nothing is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, get_peft_model

from bench.architectures.references import generate, random_model

MODEL: Final = "qwen3"
VOCAB_SIZE: Final = 128

ADAPTERS: Final[dict[str, dict[str, Any]]] = {
    "all-linear": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    "query-value": {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"]},
    "rank-patterns": {
        "r": 2,
        "lora_alpha": 3,
        "target_modules": ["q_proj", "o_proj", "up_proj", "down_proj"],
        "rank_pattern": {"down_proj": 6, r"layers\.1\.self_attn\.q_proj": 1},
        "alpha_pattern": {"up_proj": 7},
        "use_rslora": True,
    },
}
"""The settings of each adapter."""

_PACKAGES: Final = ("torch", "transformers", "peft")
_SIZE: Final = 0.2
"""The standard deviation of the second matrix of each module, which PEFT initializes with zeros."""


def make(name: str, seed: int, prompts: list[list[int]], directory: Path) -> None:
    """Writes an adapter and its references."""
    base = random_model(MODEL, VOCAB_SIZE, narrow=True)
    base.generation_config.eos_token_id = None
    torch.manual_seed(seed)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[name]))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.copy_(torch.randn(parameter.shape) * _SIZE)
        model.save_pretrained(directory)
        merged = model.merge_and_unload()
        references = [generate(merged, prompt, use_cache=True) for prompt in prompts]
    (directory / "README.md").unlink(missing_ok=True)
    content = {"versions": {one: version(one) for one in _PACKAGES}, "texts": references}
    (directory / "reference.json").write_text(json.dumps(content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, help="the tests' directory of models")
    directory: Path = parser.parse_args().models
    torch.set_num_threads(1)
    text = (directory / "architectures" / MODEL / "reference.json").read_text()
    known = json.loads(text)
    base = random_model(MODEL, VOCAB_SIZE, narrow=True)
    base.generation_config.eos_token_id = None
    prompts = [one["prompt"] for one in known]
    with torch.no_grad():
        found = [generate(base, prompt, use_cache=True)["token_ids"] for prompt in prompts]
    if found != [one["token_ids"] for one in known]:
        sys.exit(f"torch {version('torch')} makes another model than {MODEL} of the tests")
    for seed, name in enumerate(ADAPTERS):
        make(name, seed, prompts, directory / "adapters" / name)
        print(name)


if __name__ == "__main__":
    main()
