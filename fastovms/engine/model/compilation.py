"""Chooses the precisions in which a model is compiled, and compiles it.

On CPUs with VNNI, compressed weights are multiplied with 8-bit activations, in groups that share a
scale. On other CPUs OpenVINO would still use bf16, which took 1.04 to 1.13 times as long as f32
(135M and 0.5B in int8, 8 and 128 rows, and 1 row of the 0.5B; Zen 3).

Groups of 128 are up to a quarter faster than OpenVINO's default, 32. Weights with smaller groups,
as in GGUF files, need activations in equally small groups: with groups of 32 a prefill takes 0.46
to 0.58 of the time of f32, and a step of 8 tokens 0.42 to 0.5. On the demo model and a page of
English the KL divergence from f32 was 0.0027 with groups of 128, and 0.0015 with groups of 32 for
both. In bf16 without AMX, activations are 8-bit, too: otherwise prompts take 1.14 to 1.22 times as
long (bench/results/performance.md, Quality).

With AMX, large steps are fastest in bf16 without 8-bit activations, but small steps are not. The
model is then compiled twice, for large and for small steps, with one KV cache, if the second copy
fits in a quarter of the free memory. Where AVX-512 computes bf16, two variants gain nothing: with
models of 135M (int8) and 1.2B (int4) parameters on two cores of an EPYC, bf16 alone reached 1.00
and 0.99 of the speed of both, and f32 alone 1.00 and 0.97.

Compiled models are not cached on disk: OpenVINO 2026.4 cannot import its own export of a model with
paged attention (the head sizes are lost). With CACHE_DIR set, every start would write the weights
in vain.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import openvino as ov
from openvino.preprocess import PrePostProcessor

from fastovms.config import EngineConfig
from fastovms.engine.model.devices import (
    device_memory,
    find_device,
    is_cpu,
    reason_of,
    share_of_cpu,
)
from fastovms.engine.model.fusion import fuse_projections
from fastovms.engine.model.kv_cache import cache_layout
from fastovms.engine.model.model import (
    CompiledVariants,
    ModelLayout,
    PagedGraph,
    PagedModel,
    Precisions,
)
from fastovms.engine.model.paging import (
    DEFAULT_MAX_MODEL_LEN,
    MAX_WEIGHTS_SIZE,
    activation_group_size,
    fix_shapes,
    int4_group_size,
    read_paged_graph,
)
from fastovms.errors import ConfigurationError

logger = logging.getLogger(__name__)

KV_CACHE_PRECISIONS = ("f16", "u8")
"""KV cache precisions, fastest first on most machines."""

BF16_WITHOUT_AMX_KV_CACHE_PRECISIONS = ("u8", "f16")
"""KV cache precisions, preferred first, where AVX-512 computes bf16: they are equally fast, and u8
holds twice as many tokens."""

SHARED_KV_CACHE_PRECISION = "u8"
"""The KV cache precision for two variants: its layout does not depend on the inference
precision."""

EXACT_KV_CACHE_PRECISIONS = ("f32",)
"""The KV cache precision for exact results, unless the operator sets another allowed one."""

EXACT_WEIGHTS_SIZE = 32 * 1024 * 1024
"""The size of weights in bytes up to which f32 throughout costs no time."""

MAX_SMALL_CHUNK = 16
"""A step in which no sequence computes more tokens than this, drafts included, is small, however
many sequences it has."""

MAX_PREPARED_KERNELS = "64"
"""The number of kernels for specific shapes that the CPU plugin caches per compiled model. With
many sequences, nearly every step has new shapes. After 900 steps of up to 96 sequences the heap of
the demo model was 291 MB with OpenVINO's default of 5,000, and growing; 232 MB with 200, 169 with
50 and 168 with none. The CPU time of those steps was 1.00, 1.02, 1.04 and 1.10 times the first."""

_FURTHER_VARIANTS_SHARE = 0.25
"""The maximum fraction of the free memory for the weights of further variants."""

_CPUINFO = Path("/proc/cpuinfo")
_VNNI = frozenset({"avx_vnni", "avx512_vnni"})

_PRECISION = "INFERENCE_PRECISION_HINT"
_KV_PRECISION = "KV_CACHE_PRECISION"
_PREPARED_KERNELS = "CPU_RUNTIME_CACHE_CAPACITY"
_QUANTIZATION_GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
_EXACT = {_PRECISION: "f32", _QUANTIZATION_GROUP: "0"}

_ALLOWED_WHERE_EXACT = {
    **{name: (value,) for name, value in _EXACT.items()},
    _KV_PRECISION: ("f32", "f16"),
}
"""KV cache precisions that are exact. An f16 cache rounds each value once, however a prompt is
split; in 8 and 4 bits, values share a scale with other tokens of the step."""


def exact_properties(device: str, properties: Mapping[str, object]) -> dict[str, object]:
    """Returns OpenVINO's properties for f32 throughout; `properties` override them."""
    return {**(_EXACT if is_cpu(device) else {_PRECISION: "f32"}), **properties}


def check_exact(properties: Mapping[str, object]) -> None:
    """Raises ConfigurationError unless `properties` leave the model in f32, and the KV cache in a
    precision that does not depend on other running sequences."""
    for name, allowed in _ALLOWED_WHERE_EXACT.items():
        value = str(properties.get(name, allowed[0]))
        if value not in allowed:
            raise ConfigurationError(
                f"--precision exact cannot be used with plugin_config {name} {value}, only with "
                f"{' or '.join(allowed)}"
            )


def possible_precisions(
    core: ov.Core,
    device: str,
    properties: Mapping[str, object],
    *,
    exact: bool,
    weights_size: int,
    group_size: int,
    available: int,
    has_states: bool = False,
) -> list[Precisions]:
    """Returns the precisions to try, presumably fastest first. `properties` override everything.
    Raises ConfigurationError if `properties` or `exact` ask for f32 with a KV cache of bf16.

    Args:
        exact: whether to compute in f32 throughout, and on the CPU batch-invariantly, regardless of
            speed.
        weights_size: the size of the weights in bytes.
        group_size: the number of activations that share a scale; see `activation_group_size`.
        available: free memory in bytes, to decide whether a second variant fits.
        has_states: whether the model has recurrent states, which two variants cannot share: their
            precision is that of the computation.
    """
    properties = {"PERFORMANCE_HINT": "LATENCY", **properties}
    if not is_cpu(device):
        given = exact_properties(device, properties) if exact else properties
        return _of_one("", given, KV_CACHE_PRECISIONS)
    properties = {_PREPARED_KERNELS: MAX_PREPARED_KERNELS, **share_of_cpu(), **properties}
    if (
        properties.get(_KV_PRECISION) == "bf16"
    ):  # the CPU plugin supports such a cache only with computation in bf16
        precision = properties.get(_PRECISION, "f32" if exact else "bf16")
        if precision == "f32":
            raise ConfigurationError(
                "the KV cache cannot be bf16 if the model is computed in f32: it must be f32, f16 "
                "or u8"
            )
        properties = {**properties, _PRECISION: precision}
    is_f32 = properties.get(_PRECISION, "f32") == "f32"
    if exact or (is_f32 and weights_size <= EXACT_WEIGHTS_SIZE):
        given = exact_properties(device, properties)
        name = ("exact" if exact else "f32") if is_f32 else ""
        choices = _of_one(name, given, EXACT_KV_CACHE_PRECISIONS)
        return [replace(choice, is_batch_invariant=exact) for choice in choices]
    properties = {_QUANTIZATION_GROUP: str(group_size if has_vnni() else 0), **properties}
    default = _of_one("", properties, KV_CACHE_PRECISIONS)
    if _PRECISION in properties or core.get_property(device, _PRECISION) != ov.Type.bf16:
        return default
    amx = has_amx()
    kv_cache_precisions = KV_CACHE_PRECISIONS if amx else BF16_WITHOUT_AMX_KV_CACHE_PRECISIONS
    one = _of_one("bf16", properties, kv_cache_precisions)
    one.append(_of_one("f32", {_PRECISION: "f32", **properties}, KV_CACHE_PRECISIONS)[0])
    if has_states or weights_size > available * _FURTHER_VARIANTS_SHARE:
        return one
    shared = {_KV_PRECISION: SHARED_KV_CACHE_PRECISION, **properties}
    two = Precisions(
        f"bf16 and f32, {shared[_KV_PRECISION]} cache",
        shared,
        {**shared, _PRECISION: "f32"},
        max_small_chunk=0 if amx else MAX_SMALL_CHUNK,
    )
    return [two, *one] if amx else [*one, two]


def with_single_rows(choice: Precisions, *, weights_size: int, available: int) -> Precisions:
    """Returns the precisions, with a separate variant for steps of one row if that gains much and
    costs little. Batch-invariant computation has no such steps. `weights_size`, the size of the
    model's weights, and `available`, free memory, are in bytes."""
    gains = EXACT_WEIGHTS_SIZE < weights_size <= MAX_WEIGHTS_SIZE
    fits = choice.num_variants * weights_size <= available * _FURTHER_VARIANTS_SHARE
    return replace(choice, has_single_rows=gains and fits and not choice.is_batch_invariant)


def has_amx(cpuinfo: Path = _CPUINFO) -> bool:
    """Returns whether the CPU has AMX. OpenVINO reports whether it uses bf16, but not with which
    instructions."""
    return "amx_bf16" in cpuinfo.read_text().split()


def has_vnni(cpuinfo: Path = _CPUINFO) -> bool:
    """Returns whether the CPU has VNNI instructions for 8-bit integers, with AVX2 or AVX-512.
    OpenVINO does not report it."""
    return not _VNNI.isdisjoint(cpuinfo.read_text().split())


def _of_one(
    name: str, properties: Mapping[str, object], kv_cache_precisions: Sequence[str]
) -> list[Precisions]:
    """Returns the precisions of a single variant, one per KV cache precision, or only with that of
    `properties`."""
    if _KV_PRECISION in properties:
        kv_cache_precisions = (str(properties[_KV_PRECISION]),)
    prefix = f"{name}, " if name else ""
    return [
        Precisions(f"{prefix}{precision} cache", {**properties, _KV_PRECISION: precision})
        for precision in kv_cache_precisions
    ]


def compile_first(
    core: ov.Core, model: ov.Model, device: str, choices: Sequence[Precisions]
) -> tuple[Precisions, CompiledVariants]:
    """Compiles with the first precisions that the device supports. Raises ConfigurationError if the
    device supports none."""
    refusals: list[str] = []
    for precisions in choices:
        logger.info("compiling the model for %s (%s)", device, precisions.name)
        try:
            variants = compile_variants(core, model, device, precisions)
        except (RuntimeError, TypeError) as error:
            refusals.append(reason_of(error))
            continue
        for refused, reason in zip(choices, refusals, strict=False):
            logger.warning("%s does not support %s: %s", device, refused.name, reason)
        logger.info("compiled the model for %s (%s)", device, precisions.name)
        return precisions, variants
    raise ConfigurationError(f"{device} cannot run the model: {refusals[0]}")


def compile_variants(
    core: ov.Core, model: ov.Model, device: str, precisions: Precisions
) -> CompiledVariants:
    """Compiles the model for large steps and, if `precisions` differ, for small ones. Raises
    RuntimeError if the device does not support the model or a property, and TypeError if a property
    has a type that OpenVINO does not support."""
    models = [(model.clone(), precisions.large)]
    if precisions.small is not None:
        models.append((model.clone(), precisions.small))
    has_single_rows = precisions.has_single_rows and fix_shapes(single := model.clone())
    if has_single_rows:
        models.append((single, precisions.for_few_tokens))
    with ThreadPoolExecutor(2) as beside:  # compilation uses one core for most of its time
        compiled = list(beside.map(lambda way: compile_model(core, way[0], device, way[1]), models))
    if len({cache_layout(one) for one in compiled}) != 1:
        raise RuntimeError("the variants of the model cannot share a KV cache")
    large, small = compiled[0], compiled[precisions.small is not None]
    return CompiledVariants(large, small, compiled[-1] if has_single_rows else small)


def compile_single_rows(model: PagedModel) -> None:
    """Compiles a model's variant for steps of one row, which takes seconds, and switches the model
    to it from the next step on. Thread-safe. Does nothing if the model does not support such steps.
    Raises RuntimeError if the device does not support the variant, or it cannot share the KV
    cache."""
    graph = model.graph.model.clone()
    if fix_shapes(graph):
        properties = model.precisions.for_few_tokens
        model.use_single_rows(compile_model(ov.Core(), graph, model.device, properties))


def compile_model(
    core: ov.Core, model: ov.Model, device: str, properties: Mapping[str, object]
) -> ov.CompiledModel:
    """Compiles `model`, and modifies it."""
    if is_cpu(device):
        precision = properties.get(_PRECISION, core.get_property(device, _PRECISION))
        # With AMX in half precision, OpenVINO has its own fusion.
        if precision in ("f32", ov.Type.f32) or not has_amx():
            fuse_projections(model)
        if precision in ("bf16", ov.Type.bf16):
            model = _with_bf16_logits(model)
    return core.compile_model(model, device, dict(properties))


def _with_bf16_logits(model: ov.Model) -> ov.Model:
    """Makes the model return bf16 logits if it computes them in bf16: the conversion to f32 is
    slow, one twelfth of a step with 256 sequences and 152k tokens."""
    steps = PrePostProcessor(model)
    steps.output("logits").tensor().set_element_type(ov.Type.bf16)
    return steps.build()


class ExportedModel:
    """The contents of a model directory, which may be compiled in several ways.

    Attributes:
        model_dir: the path of the directory.
        max_model_len: the maximum context length in tokens.
        device: OpenVINO's name of the device.
        choices: the precisions to try, presumably fastest first.
        weights_size: the size of the weights file in bytes.
        vocab_size: the width of the logits; None = dynamic.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        device: str = "CPU",
        properties: Mapping[str, object] | None = None,
        exact: bool = False,
        max_model_len: int = DEFAULT_MAX_MODEL_LEN,
        graph: PagedGraph | None = None,
    ) -> None:
        """Raises ConfigurationError if the model cannot be paged, or the device does not exist.

        Args:
            properties: OpenVINO properties, which override the chosen ones.
            exact: whether to compute in f32 throughout and, on the CPU, independent of other tokens
                in the step.
            graph: the paged graph, if it has been read already.
        """
        self._core = ov.Core()
        self.model_dir = model_dir
        self.max_model_len = max_model_len
        self.device = find_device(self._core, device)
        self.graph = graph or read_paged_graph(self._core, model_dir, max_model_len)
        self.weights_size = self.graph.weights.stat().st_size
        width = self.graph.model.output("logits").get_partial_shape()[-1]
        self.vocab_size: int | None = width.get_length() if width.is_static else None
        available = self.available_memory()
        self.choices = possible_precisions(
            self._core,
            self.device,
            properties or {},
            exact=exact,
            weights_size=self.weights_size,
            group_size=activation_group_size(self.graph.model),
            available=available,
            has_states=self.graph.has_states,
        )
        if is_cpu(self.device) and not self.graph.has_states:
            self.choices = [
                with_single_rows(choice, weights_size=self.weights_size, available=available)
                for choice in self.choices
            ]

    @property
    def int4_group_size(self) -> int | None:
        """The number of 4-bit weights that share a scale; None = no such weights, or not on the
        CPU. See `weight_groups`."""
        return int4_group_size(self.graph.model) if is_cpu(self.device) else None

    def available_memory(self) -> int:
        """Returns the free bytes of the memory that holds the KV cache."""
        return device_memory(self._core, self.device)

    def compile(
        self, choices: Sequence[Precisions], *, single_rows_later: bool = False
    ) -> tuple[Precisions, PagedModel]:
        """Compiles the model with the first precisions that the device supports, and returns both.
        Raises ConfigurationError if the device supports none. `single_rows_later` defers the
        variant for steps of one row to `compile_single_rows`."""
        tried = choices
        if single_rows_later:
            tried = [replace(choice, has_single_rows=False) for choice in choices]
        precisions, variants = compile_first(self._core, self.graph.model, self.device, tried)
        chosen = choices[tried.index(precisions)]
        return chosen, self._model(variants, chosen, precisions)

    def compile_later(self, precisions: Precisions, layout: ModelLayout) -> PagedModel:
        """Returns a model whose variants are compiled only when they are needed. `layout` is the
        known layout of the variants."""
        without_single = replace(precisions, has_single_rows=False)
        return self._model(None, precisions, without_single, layout)

    def _model(
        self,
        variants: CompiledVariants | None,
        precisions: Precisions,
        compiled: Precisions,
        layout: ModelLayout | None = None,
    ) -> PagedModel:
        """Returns a model with these variants; None = compile them with `compiled` when they are
        needed."""
        return PagedModel(
            variants,
            device=self.device,
            precisions=precisions,
            graph=self.graph,
            compile_now=partial(
                compile_variants, self._core, self.graph.model, self.device, compiled
            ),
            layout=layout,
        )


def load_model(
    model_dir: Path,
    *,
    device: str = "CPU",
    properties: Mapping[str, object] | None = None,
    exact: bool = False,
    max_model_len: int = DEFAULT_MAX_MODEL_LEN,
    graph: PagedGraph | None = None,
) -> PagedModel:
    """Reads and compiles a model directory; see `ExportedModel`. Raises ConfigurationError if the
    model cannot be paged, or the device cannot run it."""
    files = ExportedModel(
        model_dir,
        device=device,
        properties=properties,
        exact=exact,
        max_model_len=max_model_len,
        graph=graph,
    )
    return files.compile(files.choices)[1]


def why_no_kernels(files: ExportedModel, config: EngineConfig) -> str | None:
    """Returns why this project's kernels should not be tried for a model; None = they should."""
    if config.decode_kernels == "off":
        return "--decode-kernels off"
    if not is_cpu(files.device):
        return f"the model runs on {files.device}"
    if files.choices[0].is_batch_invariant:
        return "with --precision exact a text does not depend on other requests of the step"
    if files.weights_size <= EXACT_WEIGHTS_SIZE:
        return "the model is so small that it stays in the caches of the CPU"
    return None
