"""Tests of the precisions that are tried on each machine, with a fake core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import openvino as ov
import pytest

from fastovms.engine.model import compilation
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE, check_exact, possible_precisions
from fastovms.engine.model.model import MAX_SMALL_STEP, Precisions
from fastovms.engine.model.paging import read_paged_graph
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.errors import ConfigurationError

LARGE = 2 * EXACT_WEIGHTS_SIZE
HINT, GROUP = "INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE"
TWO = "bf16 and f32, u8 cache"
ONE_AT_A_TIME = ["bf16, f16 cache", "bf16, u8 cache", "f32, f16 cache"]
BF16 = {"precision": ov.Type.bf16}


@dataclass(frozen=True)
class FakeCore:
    precision: ov.Type

    def get_property(self, device: str, name: str) -> ov.Type:
        assert (device, name) == ("CPU", "INFERENCE_PRECISION_HINT")
        return self.precision


def choices(
    precision: ov.Type = ov.Type.f32,
    *,
    device: str = "CPU",
    properties: Mapping[str, object] | None = None,
    amx: bool = True,
    vnni: bool = False,
    **options: Any,
) -> list[Precisions]:
    """Returns the precisions that are tried on a machine."""
    known = {"exact": False, "weights_size": LARGE, "group_size": 128, "available": 100 * LARGE}
    core: Any = FakeCore(precision)
    with (
        patch.object(compilation, "has_amx", lambda: amx),
        patch.object(compilation, "has_vnni", lambda: vnni),
    ):
        return possible_precisions(core, device, properties or {}, **{**known, **options})


def variants(*given: Any, **options: Any) -> list[Mapping[str, object]]:
    """Returns the properties with which each of `choices` is compiled."""
    found = [each for choice in choices(*given, **options) for each in (choice.large, choice.small)]
    return [each for each in found if each]


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({}, ["f16 cache", "u8 cache"]),
        (BF16, [TWO, "bf16, f16 cache", "bf16, u8 cache", "f32, f16 cache"]),
        ({**BF16, "available": 3 * LARGE}, ONE_AT_A_TIME),
        ({**BF16, "has_states": True}, ONE_AT_A_TIME),
        ({**BF16, "amx": False}, ["bf16, u8 cache", "bf16, f16 cache", "f32, f16 cache", TWO]),
        (
            {**BF16, "amx": False, "available": 3 * LARGE},
            ["bf16, u8 cache", "bf16, f16 cache", "f32, f16 cache"],
        ),
        ({"device": "GPU"}, ["f16 cache", "u8 cache"]),
        ({"properties": {"KV_CACHE_PRECISION": "u4"}}, ["u4 cache"]),
        (
            {**BF16, "properties": {"KV_CACHE_PRECISION": "f16"}},
            ["bf16 and f32, f16 cache", "bf16, f16 cache", "f32, f16 cache"],
        ),
        ({**BF16, "properties": {HINT: "f32"}}, ["f16 cache", "u8 cache"]),
        ({"weights_size": EXACT_WEIGHTS_SIZE}, ["f32, f32 cache"]),
        ({**BF16, "exact": True}, ["exact, f32 cache"]),
        ({"exact": True, "properties": {HINT: "bf16"}}, ["f32 cache"]),
        ({"weights_size": 1, "properties": {HINT: "bf16"}}, ["f16 cache", "u8 cache"]),
        ({"weights_size": 1, "properties": {"KV_CACHE_PRECISION": "bf16"}}, ["bf16 cache"]),
        ({**BF16, "properties": {"KV_CACHE_PRECISION": "bf16"}}, ["bf16 cache"]),
    ],
    ids=str,
)
def test_precisions_that_are_tried_depend_on_the_machine(
    machine: dict[str, Any], expected: list[str]
) -> None:
    assert [choice.name for choice in choices(**machine)] == expected


@pytest.mark.parametrize(("exact", "properties"), [(True, {}), (False, {HINT: "f32"})])
def test_f32_takes_no_cache_of_bf16(exact: bool, properties: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"KV cache cannot be bf16 .* in f32"):
        choices(exact=exact, properties={"KV_CACHE_PRECISION": "bf16", **properties})


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({HINT: "bf16"}, "INFERENCE_PRECISION_HINT bf16"),
        ({HINT: "f32", GROUP: 32}, "GROUP_SIZE 32"),
        ({"KV_CACHE_PRECISION": "u8"}, "KV_CACHE_PRECISION u8"),
        ({"KV_CACHE_PRECISION": "u4"}, "KV_CACHE_PRECISION u4"),
        ({}, None),
        ({HINT: "f32", GROUP: 0}, None),
        ({"KV_CACHE_PRECISION": "f16", "INFERENCE_NUM_THREADS": 2}, None),
    ],
    ids=str,
)
def test_only_exact_properties_are_accepted_with_precision_exact(
    properties: dict[str, object], named: str | None
) -> None:
    if named is None:
        check_exact(properties)
        return
    match = f"--precision exact .* plugin_config .*{named}, only"
    with pytest.raises(ConfigurationError, match=match):
        check_exact(properties)


def test_properties_of_the_operator_override() -> None:
    properties = {HINT: "bf16", "PERFORMANCE_HINT": "THROUGHPUT"}
    (first, *_) = choices(properties=properties, exact=True, weights_size=0, available=0)
    assert {**first.large, **properties} == first.large
    assert first.large[GROUP] == "0"


@pytest.mark.parametrize("machine", [ov.Type.f32, ov.Type.bf16])
@pytest.mark.parametrize(
    ("vnni", "given", "expected"),
    [(True, {}, "32"), (False, {}, "0"), (True, {GROUP: 64}, 64), (False, {GROUP: 64}, 64)],
)
def test_activations_share_scales_in_groups_that_fit_the_weights_where_that_is_faster(
    machine: ov.Type, vnni: bool, given: dict[str, object], expected: object
) -> None:
    found = variants(machine, properties=given, vnni=vnni, group_size=32)
    assert {each[GROUP] for each in found} == {expected}


@pytest.mark.parametrize("machine", [ov.Type.f32, ov.Type.bf16])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("CPU", {}, compilation.MAX_PREPARED_KERNELS),
        ("CPU", {"CPU_RUNTIME_CACHE_CAPACITY": 5000}, 5000),
        ("GPU", {}, None),
    ],
)
def test_prepared_kernels_are_bounded(
    machine: ov.Type, exact: bool, device: str, given: dict[str, object], expected: object
) -> None:
    found = variants(machine, device=device, properties=given, exact=exact)
    assert {each.get("CPU_RUNTIME_CACHE_CAPACITY") for each in found} == {expected}


@pytest.mark.parametrize(
    ("flags", "has_amx", "has_vnni"),
    [
        ("fpu avx512_bf16 amx_bf16 amx_tile", True, False),
        ("fpu avx512_bf16 avx2 avx512f vaes", False, False),
        ("avx2 avx_vnni", False, True),
        ("avx512f avx512_vnni", False, True),
    ],
)
def test_amx_and_vnni_are_found_among_the_flags(
    tmp_path: Path, flags: str, has_amx: bool, has_vnni: bool
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert (compilation.has_amx(path), compilation.has_vnni(path)) == (has_amx, has_vnni)


@pytest.mark.parametrize(("amx", "expected"), [(True, 0), (False, compilation.MAX_SMALL_CHUNK)])
def test_without_amx_steps_of_short_chunks_are_small(amx: bool, expected: int) -> None:
    [two] = [choice for choice in choices(ov.Type.bf16, amx=amx) if choice.small is not None]
    assert two.max_small_chunk == expected


@pytest.mark.parametrize(
    ("precision", "expected"), [("bf16", ov.Type.bf16), ("f32", ov.Type.f32), (None, ov.Type.bf16)]
)
def test_logits_of_bf16_are_left_as_they_are(
    tiny_models: dict[str, Path], precision: str | None, expected: ov.Type
) -> None:
    """For any machine: the compiled graph is examined."""
    core = Mock()
    core.get_property.return_value = ov.Type.bf16
    core.compile_model.return_value.inputs = []
    model = read_paged_graph(ov.Core(), tiny_models["tiny"]).model
    properties = {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    compilation.compile_variants(core, model, "CPU", Precisions("", properties))
    (compiled, *_) = core.compile_model.call_args.args
    assert compiled.output("logits").get_element_type() == expected
    assert model.output("logits").get_element_type() == ov.Type.f32


def step(*chunks: tuple[int, int, int]) -> StepInputs:
    """Returns a step with chunks of the given numbers of computed tokens, new tokens and sampled
    tokens."""
    past_lens, lengths, sampled = (
        np.array(column, np.int32) for column in zip(*chunks, strict=True)
    )
    none = np.zeros(0, np.int32)
    return StepInputs(
        input_ids=np.zeros(lengths.sum(), np.int64),
        position_ids=np.zeros(lengths.sum(), np.int64),
        past_lens=past_lens,
        subsequence_begins=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        block_indices=none,
        block_indices_begins=none,
        max_context_len=np.array((past_lens + lengths).max(), np.int32),
        sampled_token_indices=np.zeros(sampled.sum(), np.int64),
        sequence_lens=past_lens + lengths,
    )


DECODE, DRAFTS, FAR_DRAFTS = (100, 1, 1), (100, 8, 8), (4000, 8, 8)


@pytest.mark.parametrize(
    ("chunks", "max_small_chunk", "expected"),
    [
        ([DECODE], 0, True),
        ([DECODE] * MAX_SMALL_STEP, 0, True),
        ([DECODE] * (MAX_SMALL_STEP + 1), 0, False),
        ([DECODE] * (MAX_SMALL_STEP + 1), 16, True),
        ([DRAFTS] * 8, 0, False),
        ([DRAFTS] * 8, 16, True),
        ([FAR_DRAFTS], 16, True),
        ([(0, MAX_SMALL_STEP, 1)], 0, True),  # a whole prompt
        ([(0, MAX_SMALL_STEP + 1, 1)], 16, False),
        ([DECODE, (1000, 16, 0)], 16, True),
        ([DECODE, (1016, 16, 0)], 16, False),  # attention counts
        ([DECODE, (1016, 16, 0)], 0, False),
        ([(4000, 1, 1)] * 32, 0, True),
    ],
)
def test_step_is_small_up_to_the_limits_of_its_chunks(
    chunks: list[tuple[int, int, int]], max_small_chunk: int, expected: bool
) -> None:
    precisions = Precisions("", {}, {}, max_small_chunk=max_small_chunk)
    assert precisions.is_small(step(*chunks)) is expected
