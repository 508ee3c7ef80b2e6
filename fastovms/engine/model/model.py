"""A compiled model: one step from inputs to logits."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.model.devices import device_memory, is_gpu
from fastovms.engine.model.kv_cache import (
    BlockCopy,
    BlockRows,
    CacheInput,
    CacheLayout,
    HostCache,
    KvCache,
    RemoteCache,
    StateRows,
    States,
    cache_inputs,
    cache_layout,
    layout_of,
)
from fastovms.engine.model.step_inputs import (
    HIDDEN_STATES,
    SAMPLED_TOKEN_INDICES,
    StepInputs,
    StepLayout,
    is_single_row,
)
from fastovms.system.memory import find_trim, forget_mapped

Floats = NDArray[np.float32]

RawLogits = NDArray[np.float32] | NDArray[np.uint16]
"""Logits [rows, vocab_size] or [vocab_size]: float32, or uint16 with the bits of bfloat16, for
which numpy has no dtype (the upper half of the float32's bits)."""


Bits = NDArray[np.int32] | NDArray[np.int16]
"""The bits of logits, [rows, vocab_size] or [vocab_size]."""


def as_float32(logits: RawLogits) -> Floats:
    """Returns logits as float32, without a copy if they are float32 already."""
    if logits.dtype == np.float32:
        return logits.view(np.float32)
    copy = np.empty(logits.shape, np.float32)
    copy_float32(logits, copy)
    return copy


def copy_float32(logits: RawLogits, target: Floats) -> None:
    """Copies logits into a float32 array of the same shape."""
    if logits.dtype == np.float32:
        target[:] = logits
    else:
        bits = target.view(np.uint32)
        bits[...] = logits
        bits <<= 16


def as_bits(logits: RawLogits) -> tuple[Bits, np.int32]:
    """Returns logits' memory as integers, without a copy, for the kernels; and the bit shift that
    converts them to float32."""
    if logits.dtype == np.float32:
        return logits.view(np.int32), np.int32(0)
    return logits.view(np.int16), np.int32(16)


def without_single_rows(
    inputs: StepInputs, *, block_size: int, spare_block: int, first_second_row: int = 0
) -> StepInputs:
    """Returns inputs without dimensions of size one. If a sequence has only one token, the token is
    repeated. If only one token is sampled, its index is repeated, which adds a second row of logits
    that is not read.

    OpenVINO's CPU kernels sum a row of a matrix product in an order that does not depend on the
    other rows, and attention likewise, with one exception each: a product of a single row, and
    attention of a sequence with a single token in the step, use different kernels. A sequence that
    runs alone, or is generated token by token, would therefore differ in the last bits from the
    same sequence in a batch, or recomputed in chunks. (Measured with OpenVINO 2026.4 and AVX-512,
    f32 throughout, in batches of 1 to 64 and chunks of 1 to 400 tokens; `bench.determinism` repeats
    the measurement.)

    The repeated token has no effect: attention is causal, so the first one does not see it, and the
    next step overwrites its KV. The state after it, in models with states, is written to a separate
    row, which is never read.

    Args:
        spare_block: an unused block, for repeated tokens that would be the first token in a block.
        first_second_row: see `StateRows`.
    """
    begins, block_begins = inputs.subsequence_begins, inputs.block_indices_begins
    is_single = np.diff(begins) == 1
    sampled = inputs.sampled_token_indices
    if is_single.any():
        singles = begins[:-1][is_single]
        copies = np.ones(len(inputs.input_ids), np.int64)
        copies[singles] = 2
        double_position = inputs.past_lens[is_single] + 1
        needs_block = np.zeros(len(is_single), np.bool_)
        needs_block[is_single] = double_position % block_size == 0
        longest = max(int(inputs.max_context_len), int(double_position.max()) + 1)
        sampled = sampled + np.searchsorted(singles, sampled)
        inputs = inputs._replace(
            input_ids=inputs.input_ids.repeat(copies),
            position_ids=inputs.position_ids.repeat(copies),
            subsequence_begins=_widened(begins, is_single),
            block_indices=np.insert(
                inputs.block_indices, block_begins[1:][needs_block], spare_block
            ),
            block_indices_begins=_widened(block_begins, needs_block),
            max_context_len=np.array(longest, np.int32),
            sampled_token_indices=sampled,
        )
        if len(inputs.state_rows):
            inputs = _with_second_states(inputs, is_single, first_second_row)
    if len(sampled) == 1:
        inputs = inputs._replace(sampled_token_indices=sampled.repeat(2))
    return inputs


def first_copies(inputs: StepInputs) -> NDArray[np.int64]:
    """Returns the index, after `without_single_rows`, of each token of the inputs: int64 [T]."""
    begins = inputs.subsequence_begins
    positions = np.arange(begins[-1])
    singles = begins[:-1][np.diff(begins) == 1]
    return positions + np.searchsorted(singles, positions)


def _with_second_states(
    inputs: StepInputs, is_doubled: NDArray[np.bool_], first_second_row: int
) -> StepInputs:
    """Returns inputs in which the state after the original token is stored as before, and the state
    after the repeated token in the second row of the same block."""
    begins = inputs.state_row_begins
    ends = begins[1:][is_doubled]
    second_rows = inputs.state_rows[ends - 1] + first_second_row
    return inputs._replace(
        state_rows=np.insert(inputs.state_rows, ends, second_rows),
        state_row_begins=_widened(begins, is_doubled),
        state_intervals=np.where(is_doubled, 1, inputs.state_intervals).astype(np.int32),
    )


def _widened(begins: NDArray[np.int32], has_one_more: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Returns the start offsets of parts, [S + 1], after some parts have become longer by one."""
    widened = begins.copy()
    widened[1:] += np.cumsum(has_one_more, dtype=begins.dtype)
    return widened


class Runner(Protocol):
    """Computes steps of a model with its cache, one at a time."""

    @property
    def max_context_len(self) -> int | None:
        """The maximum context length, in tokens, that it supports; None = any."""

    @property
    def max_long_chunk(self) -> int | None:
        """The maximum number of tokens of one sequence in a step, if the sequence has more than
        `MAX_SHORT_TEXT` tokens; None = any."""

    @property
    def hidden_states(self) -> Floats | None:
        """Returns the hidden states of the last step; see `Model.hidden_states`."""

    def set_tensors(self, tensors: Mapping[str, ov.Tensor]) -> None:
        """Sets the cache tensors by input name."""

    def infer(self, inputs: StepInputs) -> RawLogits:
        """Returns logits; see `Model.infer`."""


RunnerFactory = Callable[[], Runner]
PackedAdapters = Mapping[int, Any]
"""Packed adapters (see `kernels.low_rank`) by adapter number."""

AdaptedRunnerFactory = Callable[[Callable[[], PackedAdapters]], Runner]
"""Creates a runner of steps with adapters. Its argument is a function that returns the loaded
adapters."""


class Feed:
    """Sets the inputs of an infer request that have the names of `StepInputs`' fields.

    A tensor with an unchanged shape is overwritten in place, because setting one takes 20 us and a
    step has eight.
    """

    def __init__(self, request: ov.InferRequest, ports: Iterable[Any]) -> None:
        self._request = request
        self._ports = {port.get_any_name(): port for port in ports}
        self._arrays: dict[str, NDArray[Any]] = {}

    def set(self, inputs: StepInputs) -> None:
        """Sets the request's inputs. An input whose shape has changed gets a new tensor."""
        for name, port in self._ports.items():
            array = getattr(inputs, name)
            held = self._arrays.get(name)
            if held is not None and held.shape == array.shape:
                held[...] = array
            else:
                self._arrays[name] = held = array.copy()
                self._request.set_tensor(port, ov.Tensor(held, shared_memory=True))


class StepRunner:
    """An OpenVINO infer request, fed with `StepInputs`.

    On the host the logits' memory is allocated here, because asking OpenVINO for its address takes
    60 us.
    """

    max_context_len: int | None = None
    max_long_chunk: int | None = None

    def __init__(self, compiled: ov.CompiledModel, *, is_on_gpu: bool) -> None:
        self._request = compiled.create_infer_request()
        ports = [port for port in compiled.inputs if hasattr(StepInputs, port.get_any_name())]
        self._feed = Feed(self._request, ports)
        self._output = compiled.output(0)
        is_bf16 = self._output.get_element_type() == ov.Type.bf16
        self._dtype: np.dtype[Any] = np.dtype(np.uint16 if is_bf16 else np.float32)
        self._samples_in_graph = SAMPLED_TOKEN_INDICES in {port.get_any_name() for port in ports}
        width = self._output.get_partial_shape()[-1]
        self._has_room = self._samples_in_graph and width.is_static and not is_on_gpu
        self._room: RawLogits = np.empty((0, 0), np.float32)
        names = {name for port in compiled.outputs for name in port.get_names()}
        self._has_hidden_states = HIDDEN_STATES in names

    def set_tensors(self, tensors: Mapping[str, ov.Tensor]) -> None:
        """Sets the cache tensors by input name."""
        for name, tensor in tensors.items():
            self._request.set_tensor(name, tensor)

    def infer(self, inputs: StepInputs) -> RawLogits:
        request = self._request
        self._feed.set(inputs)
        num_rows = len(inputs.sampled_token_indices)
        if self._has_room and num_rows > len(self._room):
            self._make_room(num_rows)
        request.start_async()
        request.wait()
        if self._has_room and num_rows > 0:
            return self._room[:num_rows]
        output: RawLogits = request.get_output_tensor(0).data.view(self._dtype)
        logits = output.reshape(-1, output.shape[-1])
        return logits if self._samples_in_graph else logits[inputs.sampled_token_indices]

    @property
    def hidden_states(self) -> Floats | None:
        """Returns the hidden states of the last step; see `Model.hidden_states`."""
        if not self._has_hidden_states:
            return None
        states: Floats = self._request.get_tensor(HIDDEN_STATES).data
        return states.reshape(-1, states.shape[-1])

    def _make_room(self, num_rows: int) -> None:
        """Allocates memory for at least this number of rows of logits, doubling the previous size.
        A tensor may be shrunk and grown again, up to its first size."""
        num_rows = max(num_rows, 2 * len(self._room))
        shape = [num_rows, 1, self._output.get_partial_shape()[-1].get_length()]
        room = np.empty(shape, self._dtype)
        tensor = ov.Tensor(room, ov.Shape(shape), self._output.get_element_type())
        self._request.set_tensor(self._output, tensor)
        self._room = room[:, 0]


class Model(Protocol):
    """The interface of a model for the engine and for the code that reserves the cache."""

    @property
    def is_on_gpu(self) -> bool:
        """Whether the model's cache is in GPU memory."""

    @property
    def block_size(self) -> int:
        """The number of tokens of a block."""

    @property
    def bytes_per_block(self) -> int:
        """The bytes of a block in all layers."""

    @property
    def rope_switch_len(self) -> int | None:
        """The length in tokens beyond which a sequence has another RoPE, and must be recomputed as
        a whole; None = no such length."""

    @property
    def states(self) -> States | None:
        """The recurrent states of the model; None = only attention. With states, computation can
        resume only at the end of a block, or of the sequence."""

    def available_memory(self) -> int:
        """Returns the free bytes of the device that holds the cache."""

    def allocate_cache(self, num_blocks: int) -> None:
        """Reserves a cache of this number of blocks. Raises MemoryError if that is not possible."""

    def commit_ahead(self, num_used_blocks: int) -> bool:
        """Commits some memory of the cache; see `KvCache.commit_ahead`."""

    def forget_files(self) -> None:
        """Releases the memory of the mapped model files. Call it after the first steps."""

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        """Copies blocks of the cache, in order."""

    def block_rows(self, block_id: int) -> BlockRows:
        """Returns the memory of a block; see `KvCache.block_rows`."""

    def accept_drafts(self, block_table: array[int], first: int, end: int) -> None:
        """Records that of the draft tokens that the last step computed from position `first` on,
        those before `end` are accepted. Other drafts are dropped."""

    def infer(self, inputs: StepInputs) -> RawLogits:
        """Computes one step and returns logits [R, vocab_size], valid until the next call. The
        caller may modify them."""

    @property
    def hidden_states(self) -> Floats | None:
        """The hidden states of the last step, valid until the next one; see
        `parts.drafts.draft_head`. A model with a draft head returns those of all tokens, [T,
        width], the head those of the sampled tokens, [R, width]. None = the graph does not return
        any."""


class ExactLength(NamedTuple):
    """The number of tokens up to which a graph is exact, and the reason for the limit."""

    num_tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class PagedGraph:
    """A graph whose inputs are those of `StepInputs`, a key and a value cache per attention layer,
    and state tables.

    Attributes:
        weights: the file of its constants.
        rope_switch_len: see `Model`.
        has_rope_tables: whether positions must begin at 0 in the exported graph.
        max_exact_len: the context length up to which the graph is exact, and the reason for the
            limit; None = unlimited.
        has_states: whether it has recurrent states in addition to attention: see
            `kv_cache.StateRows`.
    """

    model: ov.Model
    weights: Path
    rope_switch_len: int | None
    max_exact_len: ExactLength | None
    has_rope_tables: bool = False
    has_states: bool = False


MAX_SMALL_STEP = 48
"""The maximum number of tokens of a small step. With AMX and models of 135M and 500M parameters,
f32 takes 0.83 to 0.89 of bf16's time at 32 tokens, 0.94 to 0.97 at 48 and 1.02 to 1.09 at 64."""

MAX_KERNEL_TOKENS = 2048
"""The maximum number of tokens of a step that this project's kernels compute if OpenVINO's variants
are compiled, too."""

MAX_SHORT_TEXT = 2048
"""See `Runner.max_long_chunk`."""

MAX_SMALL_PROMPT_CONTEXT = 1024
"""The maximum context, in tokens, of a small step with a prompt chunk: beyond it, attention of
several tokens is faster in bf16. With a model of 135M parameters and 8 decoding sequences, a step
with 16 prompt tokens took, in f32 relative to bf16, 0.97 at context 0, 1.05 at 1,024, 1.19 at 2,048
and 1.26 at 4,000."""


@dataclass(frozen=True, slots=True)
class Precisions:
    """The settings with which a model is compiled.

    Attributes:
        name: the name shown to operators.
        large: OpenVINO's properties for large steps.
        small: properties for small steps, if different. A step is small with up to `MAX_SMALL_STEP`
            tokens, unless it contains a prompt chunk after more than `MAX_SMALL_PROMPT_CONTEXT`
            tokens.
        max_small_chunk: a step in which no sequence computes more tokens than this is small too,
            regardless of its total.
        has_single_rows: whether steps of one row have a separate variant; see `fix_shapes`.
        is_batch_invariant: whether logits are bit-identical regardless of the other content of a
            step: see `without_single_rows`.
    """

    name: str
    large: Mapping[str, object]
    small: Mapping[str, object] | None = None
    max_small_chunk: int = 0
    has_single_rows: bool = False
    is_batch_invariant: bool = False

    @property
    def for_few_tokens(self) -> Mapping[str, object]:
        """OpenVINO's properties for small steps and those of one row."""
        return self.small or self.large

    @property
    def num_variants(self) -> int:
        """The number of copies of the weights in memory."""
        return 1 + (self.small is not None) + self.has_single_rows

    def is_small(self, inputs: StepInputs) -> bool:
        """Returns whether a step uses the `small` variant, if it exists."""
        num_tokens = len(inputs.input_ids)
        # A prompt needs only the last token's logits; drafts need those of all tokens.
        has_prompt = num_tokens > len(inputs.sampled_token_indices)
        if has_prompt and inputs.max_context_len > MAX_SMALL_PROMPT_CONTEXT:
            return False
        return (
            num_tokens <= MAX_SMALL_STEP
            or int(np.diff(inputs.subsequence_begins).max()) <= self.max_small_chunk
        )


class CompiledVariants(NamedTuple):
    """The compiled models for large steps, small steps and steps of one row; they may be the
    same."""

    large: ov.CompiledModel
    small: ov.CompiledModel
    single_rows: ov.CompiledModel


class _Runners(NamedTuple):
    """OpenVINO's compiled variants of a model, and their runners; see `CompiledVariants`."""

    variants: CompiledVariants
    large: Runner
    small: Runner
    single_rows: Runner

    @property
    def all(self) -> set[Runner]:
        return {self.large, self.small, self.single_rows}


class ModelLayout(NamedTuple):
    """The properties of a compiled model on which its cache and its kernels depend.

    Attributes:
        cache_inputs: the inputs that hold the KV cache and states.
        vocab_size: the width of the logits; None = dynamic.
        num_threads: the number of threads that compute a step.
    """

    cache_inputs: Sequence[CacheInput]
    vocab_size: int | None
    num_threads: int

    @classmethod
    def of(cls, compiled: ov.CompiledModel) -> ModelLayout:
        """Returns the layout of a compiled model."""
        width = compiled.output("logits").get_partial_shape()[-1]
        return cls(
            cache_inputs(compiled),
            width.get_length() if width.is_static else None,
            int(compiled.get_property("INFERENCE_NUM_THREADS")),
        )


class PagedModel:
    """A model on its device. Not thread-safe: one step at a time.

    Without compiled variants, this project's kernels compute all steps.

    Args:
        variants: the compiled model; None = compile it when it is needed.
        compile_now: compiles the variants; None = `variants` are never released.
        layout: the layout of the variants; None = read it from them.

    Attributes:
        vocab_size: the width of the logits; None = dynamic.
        device: OpenVINO's name of the device.
        precisions: the settings with which it is compiled.
        graph: the graph from which it is compiled.
        has_single_rows: whether steps of one row have a separate variant; see `fix_shapes`.
        rope_switch_len, states: see `Model`.
        is_on_gpu: whether the cache is in GPU memory.
        max_few_rows: the maximum number of tokens of steps that kernels compute; 0 = none.
    """

    def __init__(
        self,
        variants: CompiledVariants | None,
        *,
        device: str,
        precisions: Precisions,
        graph: PagedGraph,
        compile_now: Callable[[], CompiledVariants] | None = None,
        layout: ModelLayout | None = None,
    ) -> None:
        self.graph = graph
        self.rope_switch_len = graph.rope_switch_len
        self.is_on_gpu = is_gpu(device)
        self.device = device
        self.precisions = precisions
        if layout is None:
            assert variants is not None, "a model that is not compiled has a layout"
            layout = ModelLayout.of(variants.large)
        self._layout = layout
        self._compile_now = compile_now
        self._compiling = threading.RLock()
        self._runners: _Runners | None = None
        self.has_single_rows = False
        self._all_rows: Runner | None = None
        self._few_rows: Mapping[int, Sequence[Runner]] = {}
        self.max_few_rows = 0
        self._adapted: Runner | None = None
        self._last_runner: Runner | None = None
        self._doubled_inputs: StepInputs | None = None
        self._few_adapted: Mapping[int, Runner] = {}
        self._packed_adapters: PackedAdapters = {}
        self._cache_inputs = layout.cache_inputs
        self._cache: KvCache = HostCache([], 0)
        self._spare_block = 0
        self._state_rows: StateRows | None = None
        values = next(c for c in self._cache_inputs if c.name.startswith("value_cache"))
        self._num_pages = values.num_pages
        self.block_size = values.page_shape[1] * values.num_pages
        self.bytes_per_block = sum(c.bytes_per_block for c in self._cache_inputs)
        state_size = sum(c.bytes_per_block for c in self._cache_inputs if c.is_state)
        self.states = States(state_size) if state_size else None
        if precisions.is_batch_invariant:
            self.bytes_per_block += state_size
        self.vocab_size = layout.vocab_size
        if variants is not None:
            self._use(self._runners_of(variants))

    def _runners_of(self, variants: CompiledVariants) -> _Runners:
        found = {one: StepRunner(one, is_on_gpu=self.is_on_gpu) for one in set(variants)}
        return _Runners(variants, *(found[one] for one in variants))

    def _use(self, runners: _Runners) -> None:
        self._runners = runners
        self.has_single_rows = runners.single_rows is not runners.small

    @property
    def is_compiled(self) -> bool:
        """Whether OpenVINO's variants of the model are in memory."""
        return self._runners is not None

    def compile(self) -> _Runners:
        """Compiles the variants, if they are not in memory, and returns their runners. Thread-safe.
        Raises RuntimeError if the device does not support them any more."""
        with self._compiling:
            if self._runners is None:
                assert self._compile_now is not None, "variants are released only with this"
                runners = self._runners_of(self._compile_now())
                if cache_layout(runners.variants.large) != self.cache_layout:
                    raise RuntimeError("the model cannot be compiled again with the same KV cache")
                for runner in runners.all:
                    self._warm_up(runner)
                self._use(runners)
            assert self._runners is not None
            return self._runners

    def release(self) -> None:
        """Releases OpenVINO's variants if kernels compute all steps; see `use_for_few_rows`. Call
        it between two steps."""
        with self._compiling:
            if self._all_rows is not None and self._compile_now is not None:
                self._runners = self._last_runner = None
                self.has_single_rows = False
        find_trim()()

    def available_memory(self) -> int:
        """Returns the free bytes of the device that holds the cache."""
        return device_memory(ov.Core(), self.device)

    def allocate_cache(self, num_blocks: int) -> None:
        """Reserves the KV tensors."""
        self._spare_block = num_blocks
        num_state_rows = 0
        if self.states is not None:
            self._state_rows = StateRows(
                num_blocks,
                self.block_size,
                self.states.max_draft_tokens,
                has_doubles=self.precisions.is_batch_invariant,
            )
            num_state_rows = self._state_rows.num_rows
        num_blocks += self.precisions.is_batch_invariant
        if self.is_on_gpu:
            context = self.compile().variants.large.get_context()
            self._cache = RemoteCache(self._cache_inputs, num_blocks, context, num_state_rows)
        else:
            self._cache = HostCache(self._cache_inputs, num_blocks, num_state_rows)
        if self._state_rows is not None:
            self._cache.clear_state(self._state_rows.zero_row)
        own = set(() if self._runners is None else self._runners.all)
        own.update(self._few_adapted.values())
        own.update(one for one in (self._adapted, self._all_rows) if one is not None)
        for runner in own.union(*self._few_rows.values()):
            runner.set_tensors(self._cache.tensors)

    def twin(self) -> PagedModel:
        """Returns a second model that uses the same compiled models, and may run concurrently. It
        has no cache yet."""
        own = self._runners
        return PagedModel(
            None if own is None else own.variants,
            device=self.device,
            precisions=self.precisions,
            graph=self.graph,
            compile_now=self._compile_now,
            layout=self._layout,
        )

    def use_for_few_rows(
        self,
        variants: Mapping[int, Sequence[RunnerFactory]],
        adapted: Mapping[int, AdaptedRunnerFactory] | None = None,
        others: RunnerFactory | None = None,
    ) -> None:
        """Makes other runners compute steps of these numbers of tokens, from the next step on.
        Thread-safe.

        Args:
            variants: factories of runners by number of tokens; the first runner that supports a
                step computes it.
            adapted: factories of runners for steps with adapters.
            others: creates the runner of all other steps without adapters while OpenVINO's variants
                are not compiled; None = compile these variants for such steps.
        """
        makers = chain([others] if others is not None else [], *variants.values())
        runners = {make: make() for make in dict.fromkeys(makers)}
        for runner in runners.values():
            runner.set_tensors(self._cache.tensors)
        self._all_rows = None if others is None else runners[others]
        self._few_rows = {
            number: [runners[make] for make in makers] for number, makers in variants.items()
        }
        self.max_few_rows = max(variants, default=0)
        adapted = adapted or {}
        made = {make: make(lambda: self._packed_adapters) for make in set(adapted.values())}
        for runner in made.values():
            runner.set_tensors(self._cache.tensors)
        self._few_adapted = {number: made[make] for number, make in adapted.items()}
        singles = self._few_rows.get(1, ())
        with self._compiling:
            own = self._runners
            if own is not None and any(one.max_context_len is None for one in singles):
                variants_left = own.variants._replace(single_rows=own.variants.small)
                self._use(own._replace(variants=variants_left, single_rows=own.small))

    def use_for_adapters(self, runner: Runner | None, packed: PackedAdapters | None = None) -> None:
        """Makes a runner compute steps with adapters, from the next step on; None = there are no
        such steps.

        Args:
            packed: all adapters, for kernels for few tokens; None = `runner` computes these steps,
                too.
        """
        self._packed_adapters = packed or {}
        if runner is not None and self._cache.tensors:
            runner.set_tensors(self._cache.tensors)
        self._adapted = runner

    @property
    def awaits_single_rows(self) -> bool:
        """Whether the variant for steps of one row is still to be set by `use_single_rows`, and no
        other variant computes all of these steps."""
        is_left = self.precisions.has_single_rows and not self.has_single_rows
        singles = self._few_rows.get(1, ())
        return is_left and all(one.max_context_len is not None for one in singles)

    def use_single_rows(self, compiled: ov.CompiledModel) -> None:
        """Uses a compiled variant for steps of one row, from the next step on. Thread-safe. Raises
        RuntimeError if the variant cannot share the KV cache."""
        if cache_layout(compiled) != self.cache_layout:
            raise RuntimeError("the variants of the model cannot share a KV cache")
        runner = StepRunner(compiled, is_on_gpu=self.is_on_gpu)
        self._warm_up(runner)
        with self._compiling:
            own = self.compile()
            variants = own.variants._replace(single_rows=compiled)
            self._use(own._replace(variants=variants, single_rows=runner))

    def _warm_up(self, runner: Runner) -> None:
        """Computes a step with a separate cache: OpenVINO repacks the weights at the first step,
        for which no request should wait."""
        spare = HostCache(self._cache_inputs, 1)
        runner.set_tensors(spare.tensors)
        layout = StepLayout(self.block_size)
        last = layout.add(array("q", (0,)), 0, 1, array("i", (0,)))
        runner.infer(layout.finish(array("q", (last,))).in_pages(self._num_pages))
        runner.set_tensors(self._cache.tensors)

    @property
    def few_row_numbers(self) -> frozenset[int]:
        """The numbers of tokens of the steps that kernels compute; see `use_for_few_rows`."""
        return frozenset(self._few_rows)

    @property
    def is_batch_invariant(self) -> bool:
        """Whether logits are bit-identical regardless of the other content of a step."""
        return self.precisions.is_batch_invariant

    @property
    def cache_layout(self) -> CacheLayout:
        """The page shape and element type of each cache input."""
        return layout_of(self._cache_inputs)

    @property
    def cache_inputs(self) -> Sequence[CacheInput]:
        """The model's inputs that hold the KV cache."""
        return self._cache_inputs

    @property
    def num_pages(self) -> int:
        """The number of pages of a block."""
        return self._num_pages

    @property
    def num_threads(self) -> int:
        """The number of threads that compute a step."""
        return self._layout.num_threads

    def commit_ahead(self, num_used_blocks: int) -> bool:
        """Commits some memory of the cache; see `KvCache.commit_ahead`."""
        return self._cache.commit_ahead(num_used_blocks)

    def forget_files(self) -> None:
        """Releases the memory of the mapped weights file; see `Model`. OpenVINO hardly reads the
        file again after it has repacked the weights for its kernels."""
        forget_mapped(self.graph.weights)

    def copy_blocks(self, copies: Iterable[BlockCopy]) -> None:
        for source, target in copies:
            self._cache.copy_block(source, target)

    def block_rows(self, block_id: int) -> BlockRows:
        """Returns the memory of a block; see `KvCache.block_rows`."""
        return self._cache.block_rows(block_id)

    @property
    def cache_traits(self) -> list[object]:
        """The settings, besides files and machine, on which the cache's content depends, for cache
        keys."""
        precisions = self.precisions
        properties = [precisions.large, precisions.small or {}]
        return [
            self.device,
            precisions.is_batch_invariant,
            [{name: str(value) for name, value in given.items()} for given in properties],
            [[c.name, str(c.element_type), c.page_shape, c.num_pages] for c in self._cache_inputs],
            self.block_size,
            self.rope_switch_len,
        ]

    def accept_drafts(self, block_table: array[int], first: int, end: int) -> None:
        """Keeps the state after the last accepted draft token; see `Model.accept_drafts`."""
        if self._state_rows is not None:
            for source, target in self._state_rows.accepted(block_table, first, end):
                self._cache.copy_state(source, target)

    def infer(self, inputs: StepInputs) -> RawLogits:
        """Computes one step; see `Model.infer`. Releases the GIL while the device computes."""
        num_rows = len(inputs.sampled_token_indices)
        rows = self._state_rows
        if rows is not None:
            inputs = rows.add_to(inputs)
        if self.precisions.is_batch_invariant:
            self._doubled_inputs = inputs
            inputs = without_single_rows(
                inputs,
                block_size=self.block_size,
                spare_block=self._spare_block,
                first_second_row=0 if rows is None else rows.first_second_row,
            )
        inputs = inputs.in_pages(self._num_pages)
        self._last_runner = runner = self._runner_of(inputs)
        logits = runner.infer(inputs)[:num_rows]
        own = self._runners
        is_bf16 = own is not None and runner is own.large and logits.dtype == np.uint16
        if is_bf16 and num_rows in self._few_rows and rows is None:
            # In bf16, the two largest logits after a prompt are often equal: recompute the last
            # token more exactly. Impossible with states, which already include that token.
            ends = inputs.prompt_ends()
            again = None if ends is None else self._few_row_runner(ends)
            if ends is not None and again is not None:
                logits = again.infer(ends)
        return logits

    def _few_row_runner(self, inputs: StepInputs) -> Runner | None:
        runners = self._few_rows.get(len(inputs.input_ids), ())
        return next((runner for runner in runners if _has_room(runner, inputs)), None)

    @property
    def hidden_states(self) -> Floats | None:
        """Returns the hidden states of the last step; see `Model.hidden_states`."""
        states = None if self._last_runner is None else self._last_runner.hidden_states
        if states is None or self._doubled_inputs is None:
            return states
        return states[first_copies(self._doubled_inputs)]

    def _runner_of(self, inputs: StepInputs) -> Runner:
        if len(inputs.adapters):
            assert self._adapted is not None, "an adapter is used that is not loaded"
            few = self._few_adapted.get(len(inputs.input_ids))
            if few is not None and self._packed_adapters and _has_room(few, inputs):
                return few
            return self._adapted
        few_rows = self._few_row_runner(inputs)
        if few_rows is not None:
            return few_rows
        own = self._runners
        if own is None:
            if self._all_rows is not None:
                return self._all_rows
            own = self.compile()
        if is_single_row(inputs):
            return own.single_rows
        return own.small if self.precisions.is_small(inputs) else own.large


def _has_room(runner: Runner, inputs: StepInputs) -> bool:
    """Returns whether a runner supports the context lengths of a step."""
    length, limit, most = inputs.max_context_len, runner.max_context_len, runner.max_long_chunk
    if most is not None and length > MAX_SHORT_TEXT:
        return bool(np.diff(inputs.subsequence_begins).max() <= most)
    return limit is None or bool(length <= limit)
