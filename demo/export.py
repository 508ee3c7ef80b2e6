"""Export a trained demo model to the files that ship: int8 IR, tokenizers, configuration."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from optimum.exporters.openvino.convert import export_tokenizer
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
from transformers import AutoTokenizer

SHIPPED_FILES = (
    "openvino_model.xml",
    "openvino_model.bin",
    "openvino_tokenizer.xml",
    "openvino_tokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_detokenizer.bin",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
)


def export(checkpoint: Path, target: Path) -> None:
    """Write `SHIPPED_FILES`, made from the transformers `checkpoint` directory, to `target`.

    Raises `RuntimeError` if a file would name a directory of this machine.
    """
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        model = OVModelForCausalLM.from_pretrained(
            checkpoint,
            export=True,
            compile=False,
            quantization_config=OVWeightQuantizationConfig(bits=8, sym=False),
        )
        model.save_pretrained(work)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        tokenizer.save_pretrained(work)
        export_tokenizer(tokenizer, work)
        keep_template_in_config(work)
        for name in SHIPPED_FILES:
            refuse_paths(work / name, (checkpoint.resolve(), work.resolve(), Path.home()))
        target.mkdir(parents=True, exist_ok=True)
        for name in SHIPPED_FILES:
            shutil.copyfile(work / name, target / name)


def keep_template_in_config(directory: Path) -> None:
    """Servers look for the chat template in either place; transformers writes only the file."""
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["chat_template"] = (directory / "chat_template.jinja").read_text(encoding="utf-8")
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def refuse_paths(file: Path, directories: tuple[Path, ...]) -> None:
    content = file.read_bytes()
    for directory in directories:
        if str(directory).encode() in content:
            raise RuntimeError(f"{file.name} names {directory}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?", default=Path("build/demo"))
    parser.add_argument("--out", type=Path, default=Path("fastovms/demo_model"))
    args = parser.parse_args()
    export(args.checkpoint, args.out)
    for name in SHIPPED_FILES:
        print(f"{(args.out / name).stat().st_size:>10,}  {name}")


if __name__ == "__main__":
    main()
