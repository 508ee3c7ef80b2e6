"""Makes an OpenVINO model and tokenizer of a GGUF file, beside it: `python -m` this FILE."""

from __future__ import annotations

import sys

import openvino_genai


def main(path: str) -> None:
    # A pipeline is the only way to the reader. This kind is made fastest.
    openvino_genai.LLMPipeline(path, "CPU", enable_save_ov_model=True, ATTENTION_BACKEND="SDPA")
    openvino_genai.Tokenizer(path, enable_save_ov_model=True)


if __name__ == "__main__":
    main(sys.argv[1])
