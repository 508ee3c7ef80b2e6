"""The instruction format of programs, and the per-step arguments that instructions read."""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final


@unique
class Opcode(IntEnum):
    """The operation of an instruction. It computes `OUT` from rows of `WIDTH` values of `A` (and
    `B`), unless the opcode's comment says otherwise."""

    QUANTIZE = 0
    """Quantizes A for the following products. `P0` is the group size in columns, `P1` the bits of
    an integer. Each head of a row becomes a row. If `P2` is not 0, it is the number of experts, and
    the rows are the pairs of choice C. If `P3` is 1 and the step has a `CHUNK_PRODUCT`, more than
    `MAX_FEW_ROWS` rows are quantized for it."""
    PRODUCT = 1
    """Multiplies the rows of the last `QUANTIZE` by a weight matrix. `P0` to `P5` are the address
    of the weights, the numbers of blocks, of groups and of units in a group, the bits of a weight,
    and `ProductKind.form`; `P6` is the number of chunks for threads. `P7` is `P3` of that
    `QUANTIZE`."""
    ADD = 2
    MULTIPLY = 3
    ADD_CONSTANT = 4
    """Adds a constant row at address `P0`."""
    MULTIPLY_CONSTANT = 5
    NORMALIZE = 6
    """RMS norm. `P0` is the address of the row of weights, `P1` the epsilon, as the bits of an
    f32."""
    SWISH = 7
    GELU_TANH = 8
    GELU_ERF = 9
    COPY = 10
    ATTEND = 11
    """Computes attention of queries A over each context segment in the paged KV cache. `P0` is the
    step field of the layer's key cache; the value cache follows. `P1` and `P2` are the number and
    the size of KV heads. `P3` is the bits of the f32 scale, `P4` the window (0 = none), `P5` the
    block size in tokens, `P6` the bits of a cached value, and `P7` the address of the sinks, f32
    [query heads] (0 = none). An 8-bit cache has OpenVINO's layout: each head of a key block begins
    with an f32 scale and an f32 zero point per column, each value row with one scale and one zero
    point; a value is scale * (integer - zero point)."""
    GATHER = 12
    """Copies the rows of A whose logits are needed. Later instructions compute only these rows."""
    LOW_RANK_DOWN = 13
    """Multiplies rows of A by the LoRA A matrices (`down`) of their adapters, if they have one; see
    `low_rank.multiply_low_rank`. `P0` is the address of the modules and `P1` their number. `P2` is
    the index of the group of modules, which the kernel does not read."""
    LOW_RANK_UP = 14
    """Multiplies the result of `LOW_RANK_DOWN` by the LoRA B matrices (`up`), and adds it to
    OUT."""
    CHOOSE = 15
    """Writes a choice of experts to OUT by the router scores A, and overwrites A; see `Router`.
    `P0` is the number of experts, `P1` the number that a row chooses, `P2` is_sigmoid, `P3`
    is_normalized, and `P4` the address of the bias (0 = none). `P5` and `P6` are the bits of the
    f32 scale and epsilon, `A_STRIDE` and `B_STRIDE` the numbers of groups and of chosen groups."""
    EXPERTS = 16
    """Multiplies the quantized pairs of choice C by the weights of their experts. `P0` to `P6` are
    as in `PRODUCT`, for one expert. `P7` is the bytes of a quantized row, `HEADS` the number of
    experts that a row chooses, `A_STRIDE` the bytes of an expert's weights, and `B_STRIDE` the
    number of experts. Results of pairs are `OUT_STRIDE` values apart."""
    COMBINE = 17
    """Adds the results A of the pairs of choice C, weighted. `P0` and `P1` are as in `CHOOSE`."""
    CONVOLVE = 18
    """Convolves each column of A over the last tokens of its sequence; see `states.convolve`. `P0`
    is the step field of the layer's state table, `P1` the number of tokens, `P2` the address of the
    weights, `P3` the address of a row to add, and `P4` the bits of a state value: 32 (f32) or 16
    (bf16)."""
    CACHE = 19
    """Writes keys B and values C to the KV cache. Parameters as in the `ATTEND` that follows."""
    ADD_SEGMENTS = 20
    """Combines the results of the segments of the previous `ATTEND`. Parameters as in `ATTEND`."""
    FLOAT_PRODUCT = 21
    """Multiplies rows of A by an f32 matrix. `P0` is the matrix's address, `P1` the number of its
    columns, and `P6` the number of chunks for threads."""
    GATED_DELTA = 22
    """Updates and reads the state of each head by the gated delta rule; see `states.gated_delta`. A
    row of A has queries, keys, values, gates and betas, in this order. `P0` is the step field of
    the layer's state table. `P1` and `P2` are the number and the size of key heads, `P3` and `P4`
    those of value heads. `P5` is the bits of a state value. `P7` is whether queries and keys are
    L2-normalized, and `P6` the epsilon of that, as the bits of an f32."""
    SOFTPLUS = 23
    SIGMOID = 24
    SCALE = 25
    """Multiplies A by the first number of B."""
    GATE = 26
    """Multiplies B by the swish of A; see `Gating`, whose numbers `P0` is the address of. `P1` is
    the distance between the numbers that are taken, 1 or 2."""
    ADD_OF_EXPERTS = 27
    """Adds a row of its expert to each pair of choice C, in A. `P0` is the address of the rows, and
    `P1` the number of experts."""
    SUBTRACT = 28
    SELECTIVE_SCAN = 29
    """Updates and reads the memory of each head of a selective state space; see
    `states.selective_scan`. A row of A has time steps, keys, values and queries, one after another.
    `P0` is the index of the layer's table of states in the step. `P1` and `P2` are the number and
    the size of heads of values, `P3` and `P4` those of keys. `P5` is the bits of a number of a
    state, and `P6` the address of the heads' decays."""
    CLAMP = 30
    """`P0` and `P1` are the bits of the least and the largest f32."""


class Field(IntEnum):
    """The fields of an instruction. An operand is a buffer's index and the offset (`_START`) in its
    rows. A row may consist of `HEADS` heads of `WIDTH` values each; a stride is the distance
    between heads, and 0 if all heads read the same values."""

    OPCODE = 0
    A = 1
    A_START = 2
    B = 3
    B_START = 4
    OUT = 5
    OUT_START = 6
    WIDTH = 7
    P0 = 8
    P1 = 9
    P2 = 10
    P3 = 11
    P4 = 12
    P5 = 13
    P6 = 14
    P7 = 15
    HEADS = 16
    A_STRIDE = 17
    B_STRIDE = 18
    OUT_STRIDE = 19
    C = 20
    C_START = 21


NUM_FIELDS: Final = 24


@unique
class StepField(IntEnum):
    """The per-step arguments of a program that computes whole steps: addresses and sizes of
    `StepInputs` arrays. The addresses of KV caches and state tables follow the last field."""

    SEQUENCE_BEGINS = 0
    PAST_LENS = 1
    BLOCKS = 2
    BLOCK_BEGINS = 3
    NUM_SEQUENCES = 4
    SAMPLED = 5
    NUM_SAMPLED = 6
    LOW_RANK = 7
    """The address of `low_rank.multiply_low_rank`. The following five fields are its arguments."""
    ADAPTERS = 8
    """The address of int64 [tokens], the address of each token's `PackedAdapter.entries`; 0 =
    none."""
    NUM_PARTS = 9
    """The number of chunks into which a token's computation is divided for threads."""
    INNER = 10
    """The address of scratch memory for the results of `down`, f32 [tokens, INNER_WIDTH]."""
    INNER_WIDTH = 11
    """The number of values in a row of that scratch memory."""
    INNER_STRIDE = 12
    """The number of values per module in such a row."""
    ATTEND = 13
    """The address of `attention.attend_...`"""
    PARTIALS = 14
    """The address of f32 for the results of attention: for each row and each context segment, head
    size + 2 values per query head."""
    STATE_ROWS = 15
    """This and the next two fields are for models with recurrent state."""
    STATE_ROW_BEGINS = 16
    STATE_INTERVALS = 17
    SEGMENT = 18
    """The length of a context segment in tokens: the work of one thread in attention."""
    TILE = 19
    """The maximum number of tokens of a sequence whose attention is computed together."""
    CHUNK_PRODUCT = 20
    """The address of the function of `chunk_products.chunk_product_of`; 0 = none."""
    CACHES = 21


MAX_FEW_ROWS: Final = 32
"""The maximum number of rows that are quantized to the bits that `QUANTIZE` names."""
