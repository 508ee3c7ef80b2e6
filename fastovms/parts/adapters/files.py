"""Reads LoRA adapters in PEFT's file format: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as show
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fastovms.backends.model_task import is_integer, read_json
from fastovms.engine.model.model import Floats, copy_float32
from fastovms.errors import ConfigurationError
from fastovms.parts.adapters.graph import LowRank, MatrixShape

_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"

_MAX_CONFIG: Final = 1024 * 1024
_MAX_HEADER: Final = 4 * 1024 * 1024
"""The maximum bytes of a safetensors header. Parsing this much JSON holds the GIL for 40 ms."""

_MAX_NAME: Final = 300
"""The maximum characters of a tensor's name, and of a regular expression."""

_MAX_PATTERNS: Final = 1000

_MOST: Final = 65504.0
"""The largest absolute value in a matrix or scale, which is that of f16. A product that overflows
in f32 would become NaN even in rows of other requests, where the mask multiplies it by 0."""

_REPEAT: Final = re.compile(r"(?<!\()[*+?{]")
_SLOW_PATTERN: Final = re.compile(r"\)[*+?{]")
_MAX_REPEATS: Final = 2
_MAX_GROUPS: Final = 2
"""Limits of a regular expression, whose matching holds the GIL: without them, matching could take
exponential time and stop the server."""

_TENSOR: Final = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight"
)

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

_VARIANTS: Final[Mapping[str, str]] = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow routing",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "lora_bias": "biases of the low-rank layers",
    "fan_in_fan_out": "layers whose weights are transposed",
    "modules_to_save": "modules that are trained as a whole",
    "layer_replication": "replicated layers",
    "target_parameters": "parameters outside of modules",
    "trainable_token_indices": "trained embeddings of tokens",
}
"""Settings that select unsupported kinds of adapters, with the names of the kinds."""

_CHANGED_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initializations that change the base model's weights. PEFT can save such an adapter for the
unchanged base model."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The content of an adapter's files.

    Attributes:
        digest: SHA-256 of both files.
        weights: the matrices by the name of the module that they change.
    """

    digest: bytes
    weights: Mapping[str, LowRank]

    @property
    def num_bytes(self) -> int:
        """The bytes of all matrices."""
        return sum(pair.down.nbytes + pair.up.nbytes for pair in self.weights.values())


def read_adapter(
    directory: Path, shapes: Mapping[str, MatrixShape], *, max_rank: int
) -> AdapterFiles:
    """Reads and checks an adapter. Raises ConfigurationError, whose message names the directory, if
    a file is missing or corrupt, the adapter was made for another model or is of an unsupported
    kind, or its rank is too high.

    Args:
        shapes: the shapes of the model's weight matrices, by module name.
        max_rank: the highest rank that is allowed.
    """
    try:
        return _read(directory, shapes, max_rank)
    except OSError as error:
        name = error.filename or directory
        raise ConfigurationError(f"cannot read {name}: {error.strerror}") from None


def _read(directory: Path, shapes: Mapping[str, MatrixShape], max_rank: int) -> AdapterFiles:
    if not directory.is_dir():
        raise ConfigurationError(f"the adapter {directory} is not a directory")
    config_path, weights_path = directory / _CONFIG, directory / _WEIGHTS
    if not config_path.is_file():
        raise ConfigurationError(f"{directory} is not a PEFT adapter: {_CONFIG} is missing")
    if not weights_path.is_file():
        more = ""
        if (directory / "adapter_model.bin").is_file():
            more = "; adapter_model.bin is not read, save it as safetensors"
        raise ConfigurationError(f"the adapter {directory} has no {_WEIGHTS}{more}")
    if config_path.stat().st_size > _MAX_CONFIG:
        raise ConfigurationError(f"{config_path} is longer than {_MAX_CONFIG} bytes")
    config = read_json(config_path)
    _check_config(config, config_path)
    tensors = _read_header(weights_path)
    pairs = _pair(tensors, weights_path)
    for module, (down, up) in pairs.items():
        _check_shapes(module, down, up, shapes, directory, max_rank)
    content = np.fromfile(weights_path, np.uint8)
    if len(content) != max(tensor.end for tensor in tensors):
        raise _corrupt(weights_path, "the file has changed since its header was read")
    digest = hashlib.sha256(config_path.read_bytes())
    digest.update(content.data)
    weights = {
        module: LowRank(
            _floats(content, down, weights_path),
            np.ascontiguousarray(_floats(content, up, weights_path).T)
            * np.float32(_scale(config, module, down.shape[0])),
        )
        for module, (down, up) in pairs.items()
    }
    return AdapterFiles(digest.digest(), weights)


def _check_config(config: Mapping[str, Any], path: Path) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ConfigurationError(f"{path}: peft_type must be LORA, not {show(kind)}")
    for key, variant in _VARIANTS.items():
        if config.get(key):
            raise ConfigurationError(f"{path}: {key} is set, but {variant} cannot be served")
    if config.get("bias", "none") != "none":
        raise ConfigurationError(
            f"{path}: bias is {show(config['bias'])}, but trained biases cannot be served, only "
            "'none'"
        )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        raise ConfigurationError(
            f"{path}: init_lora_weights is {show(start)}, which changes the base: save the adapter "
            "with path_initial_model_for_weight_conversion"
        )
    rank, alpha, alphas = config.get("r"), config.get("lora_alpha"), config.get("alpha_pattern")
    if not is_integer(rank) or int(str(rank)) < 1:
        raise ConfigurationError(f"{path}: r must be an integer of at least 1, not {show(rank)}")
    patterns = {} if alphas is None else alphas
    if not isinstance(patterns, dict):
        raise ConfigurationError(f"{path}: alpha_pattern must be an object, not {show(alphas)}")
    if len(patterns) > _MAX_PATTERNS:
        raise ConfigurationError(
            f"{path}: alpha_pattern has {len(patterns)} members, more than {_MAX_PATTERNS}"
        )
    for pattern in patterns:
        _check_pattern(pattern, path)
    for name, value in (("lora_alpha", alpha), *patterns.items()):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= _MOST:
            raise ConfigurationError(
                f"{path}: {name} must be a number from -{_MOST:g} to {_MOST:g}, not {show(value)}"
            )


def _check_pattern(pattern: str, path: Path) -> None:
    is_slow = _SLOW_PATTERN.search(pattern) or len(_REPEAT.findall(pattern)) > _MAX_REPEATS
    if is_slow or pattern.count("(") > _MAX_GROUPS or len(pattern) > _MAX_NAME:
        raise ConfigurationError(
            f"{path}: alpha_pattern has {show(pattern)}: a regular expression must have at most "
            f"{_MAX_NAME} characters, {_MAX_REPEATS} repetitions and {_MAX_GROUPS} groups, and "
            "must not repeat a group"
        )
    try:
        re.compile(_in_full(pattern))
    except (re.error, OverflowError) as error:
        raise ConfigurationError(
            f"{path}: alpha_pattern has {show(pattern)}, which is not a regular expression: {error}"
        ) from None


def _in_full(pattern: str) -> str:
    """Returns the regular expression that a module's full name must match, as in PEFT."""
    return rf"(.*\.)?({pattern})$"


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """Returns the factor that PEFT multiplies a module's low-rank product with: alpha / rank, or
    alpha / sqrt(rank) for rsLoRA."""
    alpha = config["lora_alpha"]
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(_in_full(pattern), module):
            alpha = value
            break
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


@dataclass(frozen=True, slots=True)
class _Tensor:
    """The header entry of a tensor; its data are the file's bytes from `begin` to before `end`."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, int]
    begin: int
    end: int


def _read_header(path: Path) -> list[_Tensor]:
    """Returns the header entries of a safetensors file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(size - 8, _MAX_HEADER):
            raise _corrupt(path, "the length of the header is invalid")
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise _corrupt(path, "the header is not JSON") from None
    if not isinstance(header, dict):
        raise _corrupt(path, "the header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = [_read_entry(name, entry, 8 + length, path) for name, entry in header.items()]
    end = 8 + length
    for tensor in sorted(tensors, key=lambda tensor: tensor.begin):
        if tensor.begin != end:
            raise _corrupt(path, f"{tensor.name} does not follow the tensor before it")
        end = tensor.end
    if end != size:
        raise _corrupt(path, f"the file has {size} bytes, but the tensors end at {end}")
    return tensors


def _read_entry(name: str, entry: object, start: int, path: Path) -> _Tensor:
    members: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (members.get(key) for key in ("dtype", "shape", "data_offsets"))
    if len(name) > _MAX_NAME or not name.isprintable():
        raise _corrupt(
            path, f"a name must be at most {_MAX_NAME} printable characters, not {show(name)}"
        )
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ConfigurationError(f"{path}: {name} must be F32, F16 or BF16, not {show(dtype)}")
    sizes, places = _sizes(shape), _sizes(offsets)
    if sizes is None or places is None:
        raise ConfigurationError(
            f"{path}: {name} must have a shape of two sizes and two offsets, not {show(shape)} and "
            f"{show(offsets)}"
        )
    begin, end = places
    if end - begin != math.prod(sizes) * _DTYPES[dtype].itemsize:
        raise _corrupt(path, f"{name} has {end - begin} bytes, not those of its shape {shape}")
    return _Tensor(name, _DTYPES[dtype], sizes, start + begin, start + end)


def _sizes(value: object) -> tuple[int, int] | None:
    """Returns a shape or an offset pair; None = the value is not a list of two non-negative
    integers."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    first, second = value
    is_size = all(is_integer(one) and 0 <= one < 2**63 for one in value)
    return (first, second) if is_size else None


def _corrupt(path: Path, fault: str) -> ConfigurationError:
    return ConfigurationError(f"{path} is corrupt: {fault}")


def _pair(tensors: list[_Tensor], path: Path) -> dict[str, tuple[_Tensor, _Tensor]]:
    """Returns the lora_A and the lora_B tensor of each module."""
    sides: dict[str, dict[str, _Tensor]] = {}
    for tensor in tensors:
        found = _TENSOR.fullmatch(tensor.name)
        if found is None:
            raise ConfigurationError(
                f"{path}: {tensor.name} is not supported, only lora_A and lora_B of modules are"
            )
        own = sides.setdefault(found["module"], {})
        if found["side"] in own:
            raise ConfigurationError(f"{path}: {found['module']} has lora_{found['side']} twice")
        own[found["side"]] = tensor
    if not sides:
        raise ConfigurationError(f"{path} has no tensors")
    for module, own in sides.items():
        for side in "AB":
            if side not in own:
                raise ConfigurationError(f"{path}: {module} has no lora_{side}")
    return {module: (own["A"], own["B"]) for module, own in sides.items()}


def _check_shapes(
    module: str,
    down: _Tensor,
    up: _Tensor,
    shapes: Mapping[str, MatrixShape],
    directory: Path,
    max_rank: int,
) -> None:
    shape = shapes.get(module)
    if shape is None:
        raise ConfigurationError(
            f"the adapter {directory} is for another model: it changes {module}, which is "
            "not a weight matrix of this model that adapters can change"
        )
    rank = down.shape[0]
    if not 1 <= rank <= max_rank:
        raise ConfigurationError(
            f"the adapter {directory} has rank {rank} at {module}: ranks are from 1 to {max_rank}, "
            "see --max-lora-rank"
        )
    if down.shape[1] != shape.columns or up.shape != (shape.rows, rank):
        raise ConfigurationError(
            f"the adapter {directory} is for another model: {module} has the shapes "
            f"{list(down.shape)} and {list(up.shape)}, not [{rank}, {shape.columns}] and "
            f"[{shape.rows}, {rank}]"
        )


def _floats(content: NDArray[np.uint8], tensor: _Tensor, path: Path) -> Floats:
    """Returns a tensor's values as f32 of the tensor's shape. Raises ConfigurationError if a value
    is not finite or too large."""
    numbers = np.empty(tensor.shape, np.float32)
    found = content[tensor.begin : tensor.end].view(tensor.dtype).reshape(tensor.shape)
    if tensor.dtype == np.uint16:
        copy_float32(found, numbers)
    else:
        numbers[:] = found
    if not np.abs(numbers).max() <= _MOST:  # not `>`, which is False for NaN
        raise _corrupt(path, f"{tensor.name} has numbers that are not finite, or beyond {_MOST:g}")
    return numbers
