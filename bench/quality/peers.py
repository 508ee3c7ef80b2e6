"""Measures the exactness of other engines: genai's pipeline, and llama.cpp with its own kernels."""

from __future__ import annotations

import math
import re
import subprocess
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import openvino as ov
import openvino_genai

from fastovms.engine.model.model import Floats, Model
from fastovms.parts.tuning.quality import CHUNK, chunk_logits

_CACHE_SIZE: Final = 1
_AT_ONCE: Final = 64
_CONTEXT: Final = 512
"""The tokens of a text in llama.cpp's program, which compares the second half of each text."""


class PeerQuality(NamedTuple):
    """The figures of another engine, as in `fastovms.parts.tuning.quality.Quality`; None = not
    reported."""

    mean_difference: float | None
    agreement: float
    mean_divergence: float | None
    perplexity_ratio: float


def genai_quality(
    model_dir: Path, exact: Model, texts: Sequence[Sequence[int]], stride: int
) -> PeerQuality:
    """Measures genai's pipeline with its default properties and its prefix cache.

    Args:
        stride: the greedy token is compared after every `stride` tokens of a text.
    """
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = _CACHE_SIZE
    scheduler.enable_prefix_caching = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(model_dir), scheduler, "CPU", {})
    differences: list[float] = []
    equal: list[bool] = []
    for text in texts:
        likeliest, expected = _reference(exact, text)
        ((_, log_probs),) = _generate(pipeline, [text], echo=True)
        differences += (np.array(log_probs[1 : len(text)]) - expected).tolist()
        ends = range(stride, len(text), stride)
        for first in range(0, len(ends), _AT_ONCE):
            some = ends[first : first + _AT_ONCE]
            answers = _generate(pipeline, [text[:end] for end in some], echo=False)
            equal += [
                token_ids[0] == likeliest[end - 1]
                for (token_ids, _), end in zip(answers, some, strict=True)
            ]
    return PeerQuality(
        float(np.abs(differences).mean()),
        sum(equal) / len(equal),
        None,
        math.exp(-float(np.mean(differences))),
    )


def _reference(exact: Model, text: Sequence[int]) -> tuple[list[int], Floats]:
    """Returns the greedy token after each token, and the log probability of the next token."""
    exact.allocate_cache(-(-len(text) // exact.block_size))
    token_ids = array("q", text)
    likeliest: list[int] = []
    expected: list[Floats] = []
    for start in range(0, len(text) - 1, CHUNK):
        end = min(start + CHUNK, len(text) - 1)
        logits = chunk_logits(exact, token_ids, start, end)
        likeliest += logits.argmax(axis=1).tolist()
        top = logits.max(axis=1)
        sums = np.log(np.exp(logits - top[:, None]).sum(axis=1))
        expected.append(logits[np.arange(end - start), text[start + 1 : end + 1]] - top - sums)
    return likeliest, np.concatenate(expected)


def _generate(
    pipeline: openvino_genai.ContinuousBatchingPipeline,
    prompts: Sequence[Sequence[int]],
    *,
    echo: bool,
) -> list[tuple[list[int], list[float]]]:
    """Returns the greedy token after each prompt, preceded by the prompt if `echo` is set, and the
    log probabilities."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = 1
    config.ignore_eos = True
    config.do_sample = False
    config.logprobs = 1
    config.echo = echo
    handles = [
        pipeline.add_request(number, ov.Tensor(np.array([prompt], np.int64)), config)
        for number, prompt in enumerate(prompts)
    ]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    outputs = [handle.read_all()[0] for handle in handles]
    return [(list(each.generated_ids), list(each.generated_log_probs)) for each in outputs]


def llama_quality(programs: Path, file: Path, text: str, scratch: Path) -> PeerQuality:
    """Compares llama.cpp with the same weights in f32.

    Args:
        programs: the directory of `llama-quantize` and `llama-perplexity`.
        scratch: an existing directory for temporary files of some gigabytes.

    Raises:
        subprocess.CalledProcessError: a program failed.
        ValueError: its output has another format.
    """
    plain, logits, page = (scratch / f"{file.stem}.{kind}" for kind in ("f32", "logits", "txt"))
    page.write_text(text)
    _run(programs / "llama-quantize", "--allow-requantize", file, plain, "f32")
    perplexity = programs / "llama-perplexity"
    options = ("-f", page, "-c", _CONTEXT, "-b", _CONTEXT, "--kl-divergence-base", logits)
    _run(perplexity, "-m", plain, *options)
    return read_llama(_run(perplexity, "-m", file, *options, "--kl-divergence"))


def _run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def read_llama(printed: str) -> PeerQuality:
    """Parses the output of `llama-perplexity --kl-divergence`.

    Raises:
        ValueError: a figure is missing.
    """
    figures = []
    for name in (r"Same top p", r"Mean\s+KLD", r"Mean PPL\(Q\)/PPL\(base\)"):
        found = re.search(rf"{name}\s*:\s*(-?[\d.]+)", printed)
        if found is None:
            raise ValueError(f"llama-perplexity printed no figure of {name}")
        figures.append(float(found[1]))
    agreement, divergence, ratio = figures
    return PeerQuality(None, agreement / 100, divergence, ratio)
