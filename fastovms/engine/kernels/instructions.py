"""The instructions of programs, and what a step gives to them."""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final


@unique
class Opcode(IntEnum):
    """The operation of an instruction on rows of `WIDTH` numbers. It writes its result for `A` (and
    `B`) to `OUT`, unless the comment of an opcode differs."""

    QUANTIZE = 0
    """Makes integers of A, for the products that follow. `P0` is the columns of a group, `P1` the
    bits of an integer. Each head of a row becomes a row. If `P2` is not 0, it is the number of
    experts, and the rows are those of the pairs of choice C."""
    PRODUCT = 1
    """Multiplies the last integers. `P0` to `P5` are the address of the weights, the number of
    blocks, of groups, of units in a group, the bits of a weight and whether there are zero
    points; `P6` is the number of parts."""
    ADD = 2
    MULTIPLY = 3
    ADD_CONSTANT = 4
    """`P0` is the address of a row."""
    MULTIPLY_CONSTANT = 5
    NORMALIZE = 6
    """Divides by the root of the mean square. `P0` is the address of a row of factors, `P1` what is
    added to the mean: the bits of an f32."""
    SWISH = 7
    GELU_TANH = 8
    GELU_ERF = 9
    COPY = 10
    ATTEND = 11
    """Attends with queries A over the segments of texts in the paged cache. `P0` is the index of
    the layer's cache of keys in the step, which that of values follows. `P1` and `P2` are the
    number and the size of heads of keys. `P3` is the bits of the f32 scale, `P4` the window (0 =
    none), `P5` the tokens of a block, and `P6` the bits of a number in the cache. A cache of 8 bits
    is OpenVINO's: each head of a block of keys begins with an f32 scale and an f32 zero point for
    each column, each row of values with one of each for itself; a number is scale * (integer - zero
    point)."""
    GATHER = 12
    """Takes the rows of A whose logits are needed. Later instructions compute only these rows."""
    LOW_RANK_DOWN = 13
    """Multiplies rows of A with the first matrices of their adapters, if they have one; see
    `low_rank.multiply_low_rank`. `P0` is the address of modules and `P1` their number. `P2` is not
    read here: it is the number of the group that these modules are."""
    LOW_RANK_UP = 14
    """Multiplies the result with the second matrices, and adds it to OUT."""
    CHOOSE = 15
    """Writes a choice of experts to OUT, by scores A, which it overwrites; see `Router`. `P0` is
    the number of experts, `P1` of those that a row chooses, `P2` whether shares are sigmoids, `P3`
    whether they are normalized, and `P4` the address of the bias (0 = none). `P5` and `P6` are the
    bits of the f32 scale and epsilon, `A_STRIDE` and `B_STRIDE` the numbers of groups and of chosen
    ones."""
    EXPERTS = 16
    """Multiplies the last integers, those of pairs of choice C, with the weights of their experts.
    `P0` to `P6` are those of `PRODUCT`, for one expert. `P7` is the bytes of integers in a row,
    `HEADS` the experts that a row chooses, `A_STRIDE` the bytes of an expert's weights, and
    `B_STRIDE` the number of experts. Pairs are `OUT_STRIDE` numbers apart."""
    COMBINE = 17
    """Adds the results A of pairs of choice C. `P0` and `P1` are those of `CHOOSE`."""
    CONVOLVE = 18
    """Convolves each column of A with its own weights over the last tokens of its text; see
    `states.convolve`. `P0` is the index of the layer's table of states in the step, `P1` the number
    of tokens, `P2` the address of the weights, `P3` that of a row to add, and `P4` the bits of a
    number of a state: 32, or 16 of bf16."""
    CACHE = 19
    """Adds keys B and values C to the cache, before `ATTEND` with the same parameters."""
    ADD_SEGMENTS = 20
    """Adds the results of the segments of the previous `ATTEND`, which has the same parameters."""
    FLOAT_PRODUCT = 21
    """Multiplies rows of A by an f32 matrix. `P0` is its address, `P1` the number of its columns,
    and `P6` the number of parts of its rows."""
    GATED_DELTA = 22
    """Updates and reads the memory of each head by the gated delta rule; see `states.gated_delta`.
    A row of A has queries, keys, values, gates and shares, one after another. `P0` is the index of
    the layer's table of states in the step. `P1` and `P2` are the number and the size of heads of
    keys, `P3` and `P4` those of values. `P5` is the bits of a number of a state. `P7` is whether
    queries and keys are divided by their length, and `P6` the bits of the f32 that is added to its
    square."""
    SOFTPLUS = 23
    SIGMOID = 24
    SCALE = 25
    """Multiplies A by the first number of B."""


class Field(IntEnum):
    """The fields of an instruction. Buffers are named by their index, and by where in a row the
    numbers begin. A row may consist of heads, of `WIDTH` numbers each; strides are between those,
    and 0 where all have the same numbers."""

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
    """The fields of a step that its programs take, for models whose attention they compute: the
    addresses of some `StepInputs` and their sizes. Addresses of caches and of tables of states
    follow."""

    SEQUENCE_BEGINS = 0
    PAST_LENS = 1
    BLOCKS = 2
    BLOCK_BEGINS = 3
    NUM_SEQUENCES = 4
    SAMPLED = 5
    NUM_SAMPLED = 6
    LOW_RANK = 7
    """The address of `low_rank.multiply_low_rank`. The following five are for it."""
    ADAPTERS = 8
    """The address of int64, for each token the address of the entries of its adapter; 0 = none."""
    NUM_PARTS = 9
    """The number of parts in which a token's product is computed."""
    INNER = 10
    """The address of f32, a row for each token, for the results of first matrices."""
    INNER_WIDTH = 11
    """The numbers of a row of these."""
    INNER_STRIDE = 12
    """The numbers of a module in it."""
    ATTEND = 13
    """The address of `attention.attend_...`"""
    PARTIALS = 14
    """The address of f32 for its results: for each row and each segment of its text, `size` + 2
    numbers for each head of queries."""
    STATE_ROWS = 15
    """This and the next two fields are for models with states."""
    STATE_ROW_BEGINS = 16
    STATE_INTERVALS = 17
    SEGMENT = 18
    """The tokens of a text that a thread attends to at once. Segments begin at multiples of it."""
    CACHES = 19


TILE: Final = 8
"""The maximum number of rows of a sequence that attend together."""
