"""Reads and checks the files of a model: context length, vocabulary, end tokens."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import openvino as ov

from fastovms import __version__
from fastovms.backends.model_task import (
    check_files,
    first_integer,
    graph_files,
    is_integer,
    makes_images,
    read_json,
    takes_images,
    weights_file,
)
from fastovms.engine.model.devices import available_memory, reason_of
from fastovms.engine.model.model import ExactLength, PagedGraph
from fastovms.engine.model.paging import applies_sliding_window
from fastovms.errors import ConfigurationError, UnsupportedModel
from fastovms.params import ModelInfo, SamplingDefaults, WeightCount
from fastovms.request_fields import rows_of
from fastovms.system.disk import DiskCache, file_identity, key_of
from fastovms.text.template_files import end_token_ids

logger = logging.getLogger(__name__)


_SUFFIXES: Final = (".xml", ".bin", ".json", ".jinja", ".model", ".txt")
"""The endings of the names of a model's files."""

_WHOLE: Final = 4 * 1024 * 1024
"""The number of bytes up to which a file is read as a whole."""

_NUM_SAMPLES: Final = 64
_SAMPLE_SIZE: Final = 16 * 1024
"""The number of places that are read in a larger file: reading all weights takes as long as loading
them."""


def fingerprint_of(model_dir: Path) -> str:
    """Returns a value that is the same for equal files, on every machine, in milliseconds. Samples
    the weights: further training changes nearly all of them. Raises OSError if a file cannot be
    read."""
    digest = hashlib.sha256()
    inner = model_dir.glob("*/*") if makes_images(model_dir) else ()
    for path in sorted((*model_dir.iterdir(), *inner)):
        if path.suffix in _SUFFIXES and path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\0".encode(errors="surrogateescape"))
            with path.open("rb") as file:
                if size <= _WHOLE:
                    digest.update(file.read())
                    continue
                for number in range(_NUM_SAMPLES):
                    file.seek(number * (size - _SAMPLE_SIZE) // (_NUM_SAMPLES - 1))
                    digest.update(file.read(_SAMPLE_SIZE))
    return digest.hexdigest()[:32]


_CONSTANT: Final = re.compile(
    rb'<data element_type="(\w+)" shape="([\d, ]*)" offset="(\d+)" size="\d+"'
)
_HELPERS: Final = re.compile(r"openvino_(?:de)?tokenizer")


def count_weights(model_dir: Path) -> WeightCount | None:
    """Counts the parameters in the graphs of a model; takes milliseconds. None = no graph is found.
    Shared constants count once; scales and zero points of quantized weights do not count. Raises
    OSError if a file cannot be read."""
    counts: Counter[str] = Counter()
    for path in graph_files(model_dir):
        if path.is_file() and not _HELPERS.match(path.name):
            counts += _counts(path.read_bytes())
    if not counts:
        return None
    [(element_type, _)] = counts.most_common(1)
    return WeightCount(counts.total(), element_type)


def _counts(graph: bytes) -> Counter[str]:
    counts: Counter[str] = Counter()
    constants = {(offset, kind): shape for kind, shape, offset in _CONSTANT.findall(graph)}
    for (_, kind), shape in constants.items():
        dimensions = [int(size) for size in shape.split(b",") if size.strip()]
        # Scales and zero points have one number for each row, or for each group of one.
        if dimensions and dimensions[-1] > 1:
            counts[kind.decode()] += math.prod(dimensions)
    return counts


def limit_context(model: ModelInfo, max_model_len: int | None) -> ModelInfo:
    """Returns the model with the context length that the operator set; None = the model's own.
    Raises ConfigurationError if the model's own context is shorter."""
    if max_model_len is None:
        return model
    if max_model_len > model.max_model_len:
        raise ConfigurationError(
            f"--max-model-len must be at most {model.max_model_len}, the context length of "
            f"{model.name}, not {max_model_len}"
        )
    return replace(model, max_model_len=max_model_len)


_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
"""Keys of config.json that may hold a window."""

_WINDOWED = frozenset({"sliding_attention", "chunked_attention", "local"})
"""Types of layers in config.json that have a window."""


MIN_EXACT_LEN = 16
"""The fewest tokens that texts must be able to have for a model to be worth serving."""


def fit_attention(model: ModelInfo, graph: PagedGraph) -> ModelInfo:
    """Returns the model with its context limited to the length for which the graph computes
    attention as trained. Raises ConfigurationError if that length is too short to be useful."""
    model = fit_length(model, graph.max_exact_len)
    return fit_window(model, is_applied=applies_sliding_window(graph.model))


def fit_length(model: ModelInfo, limit: ExactLength | None) -> ModelInfo:
    """Returns the model with its context limited. Raises ConfigurationError if the limit is too
    short to be useful."""
    if limit is None or limit.num_tokens >= model.max_model_len:
        return model
    if limit.num_tokens < MIN_EXACT_LEN:
        raise ConfigurationError(f"{model.name} cannot be served: {limit.reason}")
    logger.warning(
        "%s computes only short texts exactly, as %s: context length reduced from %d to %d tokens",
        model.name,
        limit.reason,
        model.max_model_len,
        limit.num_tokens,
    )
    return replace(model, max_model_len=limit.num_tokens)


def fit_window(model: ModelInfo, *, is_applied: bool) -> ModelInfo:
    """Returns the facts about the model. If the compiled model does not apply the window that
    config.json names, the context is reduced to the window, within which attention is full as
    trained."""
    window = sliding_window(model.config)
    if is_applied or window is None or window >= model.max_model_len:
        return model
    logger.warning(
        "the exported graph does not show its sliding window: context length reduced from %d to "
        "its %d tokens",
        model.max_model_len,
        window,
    )
    return replace(model, max_model_len=window)


def sliding_window(config: Mapping[str, Any]) -> int | None:
    """Returns the window of the layers with sliding-window attention in config.json, in tokens, or
    None."""
    scope = config.get("text_config")
    scope = scope if isinstance(scope, dict) else config
    window = next((scope[name] for name in _WINDOWS if scope.get(name)), None)
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        return None
    layers = scope.get("layer_types")
    layers = layers if isinstance(layers, list) else scope.get("attention_layers")
    is_used = scope.get("use_sliding_window") is not False and (
        not isinstance(layers, list) or not _WINDOWED.isdisjoint(layers)
    )
    return window if is_used else None


def fit_vocabulary(model: ModelInfo, vocab_size: int | None) -> ModelInfo:
    """Returns the model with the vocabulary of its weights, which overrides config.json, because
    larger ids must not reach the engine."""
    if vocab_size is None:
        return model
    if vocab_size != model.vocab_size:
        logger.warning(
            "config.json states vocab_size %d, but the model has %d tokens, which are used",
            model.vocab_size,
            vocab_size,
        )
    eos_token_ids = frozenset(i for i in model.eos_token_ids if i < vocab_size)
    if eos_token_ids != model.eos_token_ids:
        logger.warning("end-of-text ids beyond the vocabulary of %d tokens are ignored", vocab_size)
    return replace(model, vocab_size=vocab_size, eos_token_ids=eos_token_ids)


Config = Mapping[str, Any]


def _soft_cap(config: Config) -> str | None:
    cap = config.get("attn_logit_softcapping")
    if not isinstance(cap, int | float):
        return None
    return (
        f"attn_logit_softcapping ({cap:g}), the soft cap of attention scores, is not in the "
        "exported graph: answers differ a little from those of the original model"
    )


def _dynamic_scaling(config: Config) -> str | None:
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(scaling, dict):
        return None
    if scaling.get("rope_type", scaling.get("type")) != "dynamic":
        return None
    return (
        "the exported graph has no dynamic scaling of positions (NTK): the context is that of "
        "unscaled ones"
    )


_GAPS: Final[tuple[Callable[[Config], str | None], ...]] = (_soft_cap, _dynamic_scaling)


def log_gaps(model: ModelInfo) -> None:
    """Logs a warning for attention features of config.json that exported graphs lack."""
    text_config = model.config.get("text_config")
    config = text_config if isinstance(text_config, dict) else model.config
    for find in _GAPS:
        gap = find(config)
        if gap is not None:
            logger.warning("model %s differs from the original: %s", model.name, gap)


MAX_DIFFERENCE: Final = 0.05
"""The largest difference of log probabilities that passes. Rounding comes to a thousandth of it,
and what is left out of a graph to ten times as much and more."""

_WEIGHTS_SHARE: Final = 1.4
_FURTHER_MEMORY: Final = 256 * 2**20
"""With `_WEIGHTS_SHARE` of the weights' size, the bytes that a comparison takes at most. Weights of
every kind stay as they are; models of 135M and 500M parameters took 0.97 to 1.5 times their size
and up to 180 MB more in int8, int4 and f16, by either backend."""

_FILE: Final = "difference.json"


class NotComparable(Exception):
    """The graph cannot be computed at the same time as a backend; the message says why."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of one way to run a model with the model's exported graph.

    Attributes:
        kind: the name of its results in the cache.
        subject: the name of the way to run the model, for messages.
        files: the files that the result depends on; the first is in the model's directory.
        difference: returns the largest difference of log probabilities. Raises RuntimeError if the
            model cannot be computed in this way, and NotComparable if the exported graph cannot be
            computed.
        weights_size: the bytes of the model's weights.
        version: the version of the code that runs the model, in addition to OpenVINO's.
    """

    kind: str
    subject: str
    files: tuple[Path, ...]
    difference: Callable[[], float]
    weights_size: int
    version: str = ""


def check_graph(
    comparison: Comparison,
    cache: DiskCache,
    *,
    clock: Callable[[], float] = time.perf_counter,
    available: Callable[[], int] = available_memory,
) -> None:
    """Makes the comparison, unless its result is cached or memory is short. The first time takes at
    most as long as compiling the model twice. Raises UnsupportedModel if the results differ too
    much."""
    key = key_of(file_identity(comparison.files), ov.get_version(), __version__, comparison.version)
    entry = cache.find(comparison.kind, key)
    found = None if entry is None else _read(entry)
    model_dir = comparison.files[0].parent
    if found is None:
        if available() < _WEIGHTS_SHARE * comparison.weights_size + _FURTHER_MEMORY:
            logger.warning(
                "the check that the model is computed as exported is skipped: too little memory"
            )
            return
        logger.info(
            "first start: checking that this server computes the model as exported, which takes at "
            "most as long as loading it twice"
        )
        start = clock()
        try:
            found = comparison.difference()
        except NotComparable as error:
            logger.warning("the check that the model is computed as exported is skipped: %s", error)
            return
        except RuntimeError as error:
            raise UnsupportedModel(
                f"the model in {model_dir} cannot be computed with {comparison.subject}: "
                f"{reason_of(error)}"
            ) from error
        seconds = clock() - start
        _keep(cache, comparison.kind, key, found)
        logger.debug("largest difference of log probabilities to the export: %.1g", found)
        if found <= MAX_DIFFERENCE:
            logger.info("the model is computed as exported (checked in %.1f s)", seconds)
    if not found <= MAX_DIFFERENCE:
        raise UnsupportedModel(
            f"the model in {model_dir} cannot be served: {comparison.subject} leaves out part of "
            f"its graph (log probabilities differ by {found:.2g})"
        )


def _keep(cache: DiskCache, kind: str, key: str, difference: float) -> None:
    def fill(directory: Path) -> None:
        (directory / _FILE).write_text(json.dumps(difference))

    cache.put(kind, key, fill, replace=True)


def _read(entry: Path) -> float | None:
    """Reads a cached result; None = invalid."""
    try:
        content: Any = json.loads((entry / _FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, float) else None


LENGTH_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "seq_len",
    "seq_length",
    "n_ctx",
    "max_seq_len",
    "sliding_window",
)
"""Keys of config.json that may say how long the context is; the first integer wins, as in OVMS."""

UNLIMITED: Final = 2**20
"""The context length of a model that names none. The KV cache is the limit then."""


def read_model_info(
    model_dir: Path,
    *,
    name: str | None = None,
    generation_config: Path | None = None,
    override_generation_config: Mapping[str, object] | None = None,
    has_defaults: bool = True,
) -> ModelInfo:
    """Returns the name and the capabilities of the model.

    `do_sample` is ignored: a request without a temperature samples with temperature 1, as in vLLM
    and OVMS. Raises ConfigurationError if a file is missing, broken, or lacks required information.

    Args:
        name: the model's name for clients; None = the directory's name.
        generation_config: file instead of the directory's generation_config.json.
        override_generation_config: members that go before those of that file.
        has_defaults: whether that file's values are defaults of requests.
    """
    check_files(model_dir)
    config_path = model_dir / "config.json"
    config = read_json(config_path)
    text_config = config.get("text_config")
    scopes = [config, text_config] if isinstance(text_config, dict) else [config]
    generation_path = generation_config or model_dir / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    overrides = override_generation_config or {}
    defaults = _sampling_defaults(generation, str(generation_path)) if has_defaults else {}
    defaults |= _sampling_defaults(overrides, "--override-generation-config")

    vocab_size = first_integer(scopes, ("vocab_size",))
    if vocab_size is None or vocab_size < 1:
        raise ConfigurationError(f"{config_path} has no vocab_size")
    max_model_len = first_integer(scopes, LENGTH_KEYS)
    if max_model_len is None or max_model_len < 1:
        max_model_len = UNLIMITED
    eos_token_ids = _eos_token_ids({**generation, **overrides}, generation_path) | end_token_ids(
        model_dir
    )
    for scope in scopes:
        eos_token_ids |= _eos_token_ids(scope, config_path)
    return ModelInfo(
        name=name or model_dir.resolve().name,
        created=int(weights_file(model_dir).stat().st_mtime),
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        defaults=SamplingDefaults(**defaults),
        config=config,
        takes_images=takes_images(model_dir),
    )


def log_missing(model: ModelInfo, overrides: Mapping[str, object] | None = None) -> None:
    """Logs the facts that the model's files do not contain, and the members of
    `--override-generation-config` that have no effect."""
    known = [name for name, row in rows_of(SamplingDefaults).items() if row.field.recommended]
    unused = sorted(set(overrides or ()).difference((*known, *_FURTHER)))
    if unused:
        logger.warning(
            "--override-generation-config: %s has no effect; known are %s",
            ", ".join(unused),
            ", ".join((*known, "eos_token_id")),
        )
    if model.max_model_len == UNLIMITED:
        logger.warning(
            "config.json of %s states no context length: only the KV cache limits the context",
            model.name,
        )
    if not model.eos_token_ids:
        logger.warning("%s has no eos_token_id: generation ends only at max_tokens", model.name)


_FURTHER: Final = ("eos_token_id", "do_sample")
"""Members of a generation config besides the defaults of sampling. The first one is read; the
second one has no effect."""


def _eos_token_ids(config: Mapping[str, object], path: Path) -> frozenset[int]:
    """Returns the ids of `eos_token_id`, one or several; empty if it is missing."""
    value = config.get("eos_token_id")
    if value is None:
        return frozenset()
    token_ids = value if isinstance(value, list) else [value]
    if not all(is_integer(token_id) for token_id in token_ids):
        raise ConfigurationError(f"{path}: eos_token_id must be an integer or a list of them")
    return frozenset(token_ids)


def _sampling_defaults(generation: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns the members that requests have by default. Raises ConfigurationError: one is
    wrong."""
    defaults: dict[str, Any] = {}
    for name, row in rows_of(SamplingDefaults).items():
        allowed, value = row.field.recommended, generation.get(name)
        if value is None or allowed is None:
            continue
        is_number = is_integer(value) or (isinstance(value, float) and not row.is_integer)
        if not is_number or value not in allowed:
            raise ConfigurationError(f"{source}: {name} must not be {json.dumps(value)}")
        defaults[name] = value if row.is_integer else float(value)
    return defaults
