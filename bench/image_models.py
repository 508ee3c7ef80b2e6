"""Creates directories of tiny Stable Diffusion models with random weights, without torch.

They have the files, inputs and outputs that optimum-intel exports. The networks are a few
convolutions: their pictures show coloured noise that depends on the prompt, the seed and the
picture to edit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from bench.speech_models import BYTE_STEPS, PLAIN_BPE
from fastovms.gguf.tokenizer import build_tokenizer

SCALE: Final = 8
"""The pixels of a picture for each pixel of a latent, in each direction."""

_MAX_TOKENS: Final = 77
_WIDTH: Final = 32
_LATENT: Final = 4

_INDEX: Final = {
    "_diffusers_version": "0.36.0",
    "scheduler": ["diffusers", "DDIMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
_SCHEDULER: Final = {
    "_class_name": "DDIMScheduler",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
    "set_alpha_to_one": False,
    "steps_offset": 1,
}
_VAE: Final = {
    "_class_name": "AutoencoderKL",
    "block_out_channels": [_WIDTH] * 4,
    "in_channels": 3,
    "latent_channels": _LATENT,
    "out_channels": 3,
    "scaling_factor": 0.18215,
}


class _Graphs:
    """Builds the networks of one model."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def _weights(self, *shape: int) -> Any:
        values = self._rng.normal(0, 1 / np.prod(shape[1:]) ** 0.5, shape)
        return ops.constant(values.astype(np.float32))

    def _convolution(self, value: Any, rows: int, columns: int, *, step: int = 1) -> Any:
        size = step if step > 1 else 3
        pad = [0, 0] if step > 1 else [1, 1]
        kernel = self._weights(rows, columns, size, size)
        return ops.convolution(value, kernel, [step, step], pad, pad, [1, 1])

    def text_encoder(self, vocab_size: int) -> ov.Model:
        ids = ops.parameter([-1, -1], np.int64, name="input_ids")
        ids.output(0).set_names({"input_ids"})
        table = self._weights(vocab_size, _WIDTH)
        embedded = ops.gather(table, ids, ops.constant(np.int64(0)))
        places = ops.constant(self._rng.normal(0, 1, (1, _MAX_TOKENS, _WIDTH)).astype(np.float32))
        states = ops.matmul(
            ops.tanh(ops.multiply(embedded, places)), self._weights(_WIDTH, _WIDTH), False, False
        )
        states.output(0).set_names({"last_hidden_state"})
        return ov.Model([states], [ids], "text_encoder")

    def unet(self, *, num_channels: int) -> ov.Model:
        sample = ops.parameter([-1, num_channels, -1, -1], np.float32, name="sample")
        timestep = ops.parameter([1], np.int64, name="timestep")
        states = ops.parameter([-1, -1, _WIDTH], np.float32, name="encoder_hidden_states")
        for node in (sample, timestep, states):
            node.output(0).set_names({node.friendly_name})
        time = ops.divide(ops.convert(timestep, "f32"), ops.constant(np.float32(1000)))
        text = ops.unsqueeze(ops.reduce_mean(states, ops.constant([1])), ops.constant([2, 3]))
        value = self._convolution(sample, _WIDTH, num_channels)
        value = ops.tanh(ops.add(ops.add(value, text), time))
        value = ops.tanh(self._convolution(value, _WIDTH, _WIDTH))
        noise = self._convolution(value, _LATENT, _WIDTH)
        noise.output(0).set_names({"out_sample"})
        return ov.Model([noise], [sample, timestep, states], "unet")

    def vae_decoder(self) -> ov.Model:
        latent = ops.parameter([-1, _LATENT, -1, -1], np.float32, name="latent_sample")
        latent.output(0).set_names({"latent_sample"})
        value = ops.tanh(self._convolution(latent, 3 * SCALE**2, _LATENT))
        picture = ops.depth_to_space(value, "blocks_first", SCALE)
        picture.output(0).set_names({"sample"})
        return ov.Model([picture], [latent], "vae_decoder")

    def vae_encoder(self) -> ov.Model:
        picture = ops.parameter([-1, 3, -1, -1], np.float32, name="sample")
        picture.output(0).set_names({"sample"})
        latent = self._convolution(picture, 2 * _LATENT, 3, step=SCALE)
        latent.output(0).set_names({"latent_parameters"})
        return ov.Model([latent], [picture], "vae_encoder")


def _tokenizer() -> tuple[dict[str, Any], int]:
    """Returns the content of the tokenizer.json of a byte tokenizer, and the id of its last token,
    which ends and pads texts."""
    letters = [chr(code) for code in range(33, 127)]
    vocab = {letter: number for number, letter in enumerate(["Ġ", *letters])}
    end = len(vocab)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [{"id": end, "content": "<|endoftext|>", "special": True, **flags}],
        **BYTE_STEPS,
        "model": {
            "type": "BPE",
            "vocab": vocab,
            **PLAIN_BPE,
            "byte_fallback": False,
            "ignore_merges": False,
        },
    }
    return content, end


def write_tiny(
    directory: Path,
    *,
    class_name: str = "StableDiffusionPipeline",
    inpaints_only: bool = False,
    sample_size: int = 8,
    seed: int = 0,
) -> None:
    """Writes a tiny model.

    Args:
        class_name: the pipeline that model_index.json names.
        inpaints_only: whether the denoiser also has inputs for the mask and the masked picture.
        sample_size: the default width and height of its pictures, divided by `SCALE`.
    """
    content, end = _tokenizer()
    graphs = _Graphs(seed)
    num_channels = 2 * _LATENT + 1 if inpaints_only else _LATENT
    networks = {
        "text_encoder": (
            graphs.text_encoder(end + 1),
            {
                "_name": "CLIPTextModel",
                "max_position_embeddings": _MAX_TOKENS,
                "num_hidden_layers": 1,
            },
        ),
        "unet": (
            graphs.unet(num_channels=num_channels),
            {
                "_class_name": "UNet2DConditionModel",
                "in_channels": num_channels,
                "sample_size": sample_size,
            },
        ),
        "vae_decoder": (graphs.vae_decoder(), _VAE),
        "vae_encoder": (graphs.vae_encoder(), _VAE),
    }
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "model_index.json", {"_class_name": class_name, **_INDEX})
    (directory / "scheduler").mkdir(exist_ok=True)
    _write(directory / "scheduler" / "scheduler_config.json", _SCHEDULER)
    for name, (graph, config) in networks.items():
        folder = directory / name
        folder.mkdir(exist_ok=True)
        ov.save_model(graph, folder / "openvino_model.xml")
        _write(folder / "config.json", config)
    folder = directory / "tokenizer"
    folder.mkdir(exist_ok=True)
    models = build_tokenizer(content, {"eos": end, "pad": end})
    for name, model in zip(("tokenizer", "detokenizer"), models, strict=True):
        ov.save_model(model, folder / f"openvino_{name}.xml", compress_to_fp16=False)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.image_models", description=__doc__)
    parser.add_argument("directory", type=Path, help="where to write")
    parser.add_argument("--size", type=int, default=64, help="usual size of a picture, in pixels")
    options = parser.parse_args(arguments)
    write_tiny(options.directory, sample_size=options.size // SCALE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
