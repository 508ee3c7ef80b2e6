"""Reads and checks a model's files: context length, vocabulary, end tokens."""

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
"""The file name extensions of a model's files."""

_WHOLE: Final = 4 * 1024 * 1024
"""Files up to this size in bytes are hashed completely."""

_NUM_SAMPLES: Final = 64
_SAMPLE_SIZE: Final = 16 * 1024
"""The size of the sample that is hashed of a larger file: reading all weights takes as long as
loading them."""


def fingerprint_of(model_dir: Path) -> str:
    """Returns a hash of a model's files, the same on every machine, in milliseconds. Only samples
    of the weights are hashed: further training changes nearly all of them. Raises OSError if a file
    cannot be read."""
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
    """Counts the parameters in a model's graphs; takes milliseconds. Returns None if there is no
    graph. Shared constants count once; scales and zero points of quantized weights do not count.
    Raises OSError if a file cannot be read."""
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
        # Scales and zero points have one value per row or group.
        if dimensions and dimensions[-1] > 1:
            counts[kind.decode()] += math.prod(dimensions)
    return counts


def limit_context(model: ModelInfo, max_model_len: int | None) -> ModelInfo:
    """Returns the model with the context length set by the operator; None = the model's own. Raises
    ConfigurationError if the model's own context is shorter."""
    if max_model_len is None:
        return model
    if max_model_len > model.max_model_len:
        raise ConfigurationError(
            f"--max-model-len must be at most {model.max_model_len}, the context length of "
            f"{model.name}, not {max_model_len}"
        )
    return replace(model, max_model_len=max_model_len)


_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
"""Keys of config.json that may hold the size of a sliding window."""

_WINDOWED = frozenset({"sliding_attention", "chunked_attention", "local"})
"""Layer types in config.json that have a sliding window."""


MIN_EXACT_LEN = 16
"""The minimum context length, in tokens, with which a model is served."""


def fit_attention(model: ModelInfo, graph: PagedGraph) -> ModelInfo:
    """Returns the model with its context limited to the length up to which the graph computes
    attention as the model was trained. Raises ConfigurationError if that is too short to be
    useful."""
    model = fit_length(model, graph.max_exact_len)
    return fit_window(model, is_applied=applies_sliding_window(graph.model))


def fit_length(model: ModelInfo, limit: ExactLength | None) -> ModelInfo:
    """Returns the model with its context limited by `limit`; None = no limit. Raises
    ConfigurationError if the limit is too short to be useful."""
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
    """Returns the model's properties. If the graph does not apply the sliding window of
    config.json, the context is limited to the window, within which full attention is the same."""
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
    """Returns the window of the sliding-window layers in config.json, in tokens; None = no
    window."""
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
    """Returns the model with the vocabulary size of its weights instead of config.json's: larger
    token ids must not reach the engine."""
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
    """Logs a warning for attention features in config.json that exported graphs lack."""
    text_config = model.config.get("text_config")
    config = text_config if isinstance(text_config, dict) else model.config
    for find in _GAPS:
        gap = find(config)
        if gap is not None:
            logger.warning("model %s differs from the original: %s", model.name, gap)


MAX_DIFFERENCE: Final = 0.05
"""The largest accepted difference of log probabilities. Rounding causes a thousandth of it; an
operation missing from the graph causes at least ten times as much."""

_WEIGHTS_SHARE: Final = 1.4
_FURTHER_MEMORY: Final = 256 * 2**20
"""A comparison needs at most this many bytes plus `_WEIGHTS_SHARE` times the weights' size. Models
of 135M and 500M parameters took 0.97 to 1.5 times their size plus up to 180 MB, in int8, int4 and
f16, with either backend."""

_FILE: Final = "difference.json"


class NotComparable(Exception):
    """The exported graph cannot be computed while a backend runs; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of one way to run a model with the model's exported graph.

    Attributes:
        kind: the kind of its results in the cache.
        subject: the name of this way to run the model, for messages.
        files: the files on which the result depends; the first is in the model's directory.
        difference: returns the largest difference of log probabilities. Raises RuntimeError if the
            model cannot be computed in this way, and NotComparable if the exported graph cannot be
            computed.
        weights_size: the size of the model's weights in bytes.
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
    """Runs the comparison, unless its result is cached or memory is short. At first it takes at
    most as long as compiling the model twice. Raises UnsupportedModel if the difference is too
    large."""
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
    """Returns a cached result; None = invalid."""
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
"""Keys of config.json for the context length; the first integer wins, as in OVMS."""

UNLIMITED: Final = 2**20
"""The context length of a model that does not state one; the KV cache is then the limit."""


def read_model_info(
    model_dir: Path,
    *,
    name: str | None = None,
    generation_config: Path | None = None,
    override_generation_config: Mapping[str, object] | None = None,
    has_defaults: bool = True,
) -> ModelInfo:
    """Returns a model's name and properties.

    `do_sample` is ignored: a request without a temperature samples with temperature 1, as in vLLM
    and OVMS. Raises ConfigurationError if a file is missing, broken, or lacks required information.

    Args:
        name: the model's name for clients; None = the directory's name.
        generation_config: a file to use instead of the directory's generation_config.json.
        override_generation_config: values that override those of that file.
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
    """Logs which properties are missing from the model's files, and which keys of
    `--override-generation-config` have no effect."""
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
"""Known keys of a generation config besides sampling parameters. The first is read; the second has
no effect."""


def _eos_token_ids(config: Mapping[str, object], path: Path) -> frozenset[int]:
    """Returns the token ids in `eos_token_id`, an integer or a list; empty if it is missing."""
    value = config.get("eos_token_id")
    if value is None:
        return frozenset()
    token_ids = value if isinstance(value, list) else [value]
    if not all(is_integer(token_id) for token_id in token_ids):
        raise ConfigurationError(f"{path}: eos_token_id must be an integer or a list of them")
    return frozenset(token_ids)


def _sampling_defaults(generation: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns the default sampling parameters of requests. Raises ConfigurationError if one is
    invalid."""
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
