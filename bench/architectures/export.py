"""Creates small models with random weights, exports them with optimum-intel, and saves the texts
that transformers generates with them in float32, one at a time.

Runs in an environment with the packages of `requirements.txt`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import traceback
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from openvino import opset13
from optimum.exporters.openvino import main_export

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.architectures.configs import ARCHITECTURES
from bench.architectures.references import generate, make_prompts, random_model


def export(
    name: str, directory: Path, prompts: list[list[int]], vocab_size: int, *, narrow: bool
) -> None:
    original = directory / "original"
    model = random_model(name, vocab_size, narrow=narrow)
    model.generation_config.eos_token_id = None
    model.save_pretrained(original)
    with torch.no_grad():
        use_cache = ARCHITECTURES[name].needs_cache
        references = [generate(model, prompt, use_cache=use_cache) for prompt in prompts]
    main_export(
        str(original),
        output=directory,
        task="text-generation-with-past",
        framework="pt",
        convert_tokenizer=False,
        stateful=True,
    )
    if narrow:
        pack(directory)
    (directory / "reference.json").write_text(json.dumps(references))


def pack(directory: Path) -> None:
    """Keeps the files that a test needs and compresses them without loss."""
    graph = directory / "openvino_model.xml"
    model = ov.Core().read_model(graph).clone()
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() == ov.Type.f32:
            half = node.data.astype(np.float16)
            if node.data.size > 1 and np.array_equal(half, node.data):
                weights = opset13.convert(opset13.constant(half), ov.Type.f32)
                for target in node.output(0).get_target_inputs():
                    target.replace_source_output(weights.output(0))
    ov.save_model(model, directory / "packed.xml", compress_to_fp16=False)
    del model
    (directory / "packed.bin").rename(directory / "openvino_model.bin")
    text = re.sub(r">\s+<", "><", (directory / "packed.xml").read_text())
    graph.write_text(text + "\n")
    (directory / "packed.xml").unlink()
    (directory / "generation_config.json").unlink()
    (directory / "versions.json").unlink()
    shutil.rmtree(directory / "original")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*", metavar="name", help="in the table (default: all)")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--narrow", action="store_true", help="as small as models in the tests are")
    parser.add_argument("--num-prompts", type=int, default=16)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    packages = ("torch", "transformers", "optimum-intel", "openvino")
    prompts = make_prompts(arguments.vocab_size, arguments.num_prompts)
    torch.set_num_threads(1)
    versions = {package: version(package) for package in packages}
    for name in arguments.names or ARCHITECTURES:
        directory = arguments.directory / name.replace(", ", "-").replace(" ", "-")
        if (directory / "reference.json").exists() or (directory / "failure").exists():
            continue
        directory.mkdir(exist_ok=True)
        (directory / "versions.json").write_text(json.dumps(versions))
        try:
            export(name, directory, prompts, arguments.vocab_size, narrow=arguments.narrow)
        except Exception as error:
            traceback.print_exc()
            reason = str(error).strip().splitlines() or [type(error).__name__]
            (directory / "failure").write_text(reason[0])
        print(name, flush=True)


if __name__ == "__main__":
    main()
