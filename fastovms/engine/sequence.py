"""A sequence: one sample's tokens, how many of them are computed, and their KV blocks."""

from __future__ import annotations

import copy
from array import array
from enum import Enum
from typing import NamedTuple, Protocol, Self

from fastovms.engine.blocks import ROOT
from fastovms.engine.model.model import Floats
from fastovms.params import FinishReason, GenerationRequest, TokenLogprobs


class SequenceStatus(Enum):
    """The scheduling status of a sequence."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class LogitsProcessor(Protocol):
    """A function that changes one row of logits in place before a token is drawn."""

    def __call__(self, logits: Floats, token_ids: array[int]) -> None:
        """Changes `logits`, float32 [vocab_size], for the token that follows `token_ids`."""


class Scout(Protocol):
    """A cursor that follows draft tokens through a sample's grammar without changing its state."""

    def follow(self, token_ids: list[int]) -> int:
        """Advances over tokens, up to the first one that the grammar does not allow. Returns the
        number of accepted tokens."""

    def forced_tokens(self) -> list[int]:
        """Returns the tokens that must follow, as long as only one continuation is possible."""


class SequenceGrammar(LogitsProcessor, Protocol):
    """The state of one sample's grammar, as used by the engine.

    Attributes:
        error: why the grammar cannot continue; "" = no error.
    """

    @property
    def error(self) -> str:
        """Why the grammar has failed; "" = it has not."""

    def give_up(self) -> None:
        """Records that other settings of the request exclude every token that the grammar
        allows."""

    def forced_tokens(self, token_ids: array[int]) -> list[int]:
        """Returns the tokens that must follow `token_ids`, as long as only one continuation is
        possible."""

    def scout(self, token_ids: array[int]) -> Scout | None:
        """Returns a scout positioned after `token_ids`; None if the grammar has ended."""

    def __copy__(self) -> Self: ...


class DrawState(NamedTuple):
    """The state for drawing one sample's tokens, in addition to its sampling parameters.

    Attributes:
        seed: 64 bits.
        processors: the logits processors, applied in this order before the grammar.
        grammar: the state of the sample's grammar; None = no grammar.
    """

    seed: int = 0
    processors: tuple[LogitsProcessor, ...] = ()
    grammar: SequenceGrammar | None = None


class SequenceGroup:
    """Sequences that are computed in step: the beams of a search. `size` is the maximum number of
    its sequences."""

    __slots__ = ("sequences", "size")

    def __init__(self, size: int) -> None:
        self.sequences: list[Sequence] = []
        self.size = size


class Sequence:
    """One sample of a request, or one beam of a search.

    There are no prefill and decode phases: a sequence is scheduled whenever `num_computed_tokens <
    num_tokens`, and a token is sampled in the step that catches up.

    Attributes:
        token_ids: int64, prompt and generated tokens.
        num_computed_tokens: tokens whose KV is in the cache (a prefix of `token_ids`).
        num_cached_tokens: prompt tokens found in the prefix cache at the first admission.
        num_own_cached_tokens: those of the cached tokens that its own tenant had computed or used.
        is_prefix_counted: whether these two counts are final.
        block_table: int32 ids of the KV blocks, in order. Changed only with `BlockManager`.
        adapter: the number of its LoRA adapter; 0 = none.
        cache_salt: prefixes are shared only between sequences with the same salt; see
            `prefix_salt`.
        tenant: cached prefixes on disk, and text for drafts, are shared only within a tenant.
        owner: the API key or address, for sharing the engine fairly.
        priority: the client's value; lower values run first.
        prefix_root: the prefix cache's node before the first block of `block_table`.
        prefix_node: the prefix cache's node of the last registered full block.
        num_registered_blocks: full blocks of `block_table` that are registered in the prefix cache.
        draft_token_ids: int64, draft tokens to be verified in the next step.
        grammar: the state of the sample's grammar; None = no grammar.
        processors: the logits processors, with the grammar last.
        prompt_logprobs: log probabilities of the prompt tokens scored so far; only sample 0 scores
            its prompt.
        parent: the sample whose prompt blocks this one shares once they are computed.
        group: the group of sequences that run in step with this one; None = none.
    """

    __slots__ = (
        "adapter",
        "block_table",
        "cache_salt",
        "draft_token_ids",
        "grammar",
        "group",
        "index",
        "is_prefix_counted",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_own_cached_tokens",
        "num_prompt_tokens",
        "num_registered_blocks",
        "owner",
        "params",
        "parent",
        "prefix_node",
        "prefix_root",
        "priority",
        "processors",
        "prompt_logprobs",
        "rank",
        "request_id",
        "seed",
        "seq_id",
        "status",
        "tenant",
        "token_ids",
        "token_limit",
    )

    def __init__(
        self,
        seq_id: int,
        request: GenerationRequest,
        index: int,
        *,
        token_limit: int,
        rank: int = 0,
        parent: Sequence | None = None,
        group: SequenceGroup | None = None,
        drawing: DrawState | None = None,
    ) -> None:
        """Creates a waiting sample of a request.

        Args:
            index: the index of the sample in the request.
            token_limit: the length in tokens, including the prompt, at which the sequence ends.
            parent: the sample that computes the prompt for this one, if any.
            drawing: how its tokens are drawn; None = only by `request.params`.
        """
        drawing = drawing or DrawState()
        self.seq_id = seq_id
        self.request_id = request.request_id
        self.index = index
        self.num_prompt_tokens = len(request.prompt_token_ids)
        if parent is None:
            self.token_ids = array("q", request.prompt_token_ids)
        else:  # copying an array takes a tenth of the time
            self.token_ids = parent.token_ids[: self.num_prompt_tokens]
        self.token_ids.extend(request.generated_token_ids)
        self.params = request.params
        self.token_limit = token_limit
        self.seed = drawing.seed
        self.priority = request.priority
        self.rank = rank
        self.cache_salt = request.prefix_salt
        self.adapter = 0 if request.adapter is None else request.adapter.number
        self.tenant = request.tenant
        self.owner = request.owner or request.tenant
        self.draft_token_ids = array("q")
        self.grammar = grammar = drawing.grammar
        self.processors = drawing.processors if grammar is None else (*drawing.processors, grammar)
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]
        self.parent = parent
        self.group = group
        self.status = SequenceStatus.WAITING
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_own_cached_tokens = 0
        # Only a request's first sample is counted, and only if it was not resumed.
        self.is_prefix_counted = index > 0 or self.num_generated_tokens > 0
        self.block_table = array("i")
        self.prefix_root = ROOT
        self.prefix_node = ROOT
        self.num_registered_blocks = 0

    def fork(self, seq_id: int) -> Sequence:
        """Returns a copy with the same tokens and computed count, of the same group but not added
        to its list yet, and without blocks."""
        child = copy.copy(self)
        child.seq_id = seq_id
        child.token_ids = self.token_ids[:]
        child.draft_token_ids = array("q")
        child.block_table = array("i")
        others = self.processors if self.grammar is None else self.processors[:-1]
        child.processors = tuple(map(copy.copy, others))
        if self.grammar is not None:
            child.grammar = copy.copy(self.grammar)
            child.processors += (child.grammar,)
        return child

    @property
    def scores_prompt(self) -> bool:
        """Whether prompt tokens still need log probabilities."""
        return (
            self.params.prompt_logprobs is not None
            and self.index == 0
            and len(self.prompt_logprobs) < self.num_prompt_tokens
        )

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the prompt and the output."""
        return len(self.token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """The number of tokens whose KV is not in the cache yet."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_generated_tokens(self) -> int:
        """The number of tokens after the prompt."""
        return len(self.token_ids) - self.num_prompt_tokens

    def append(self, token_id: int) -> FinishReason | None:
        """Adds a sampled token. Returns the finish reason, or None if the sequence continues."""
        self.token_ids.append(token_id)
        params = self.params
        # A complete grammar allows only end tokens, so they cannot be ignored.
        if token_id in params.eos_token_ids and not (params.ignore_eos and self.grammar is None):
            return FinishReason.STOP
        if token_id in params.stop_token_ids:
            return FinishReason.STOP
        if len(self.token_ids) >= self.token_limit:
            return FinishReason.LENGTH
        repetition = params.repetition_detection
        if (
            repetition is not None
            and self.num_generated_tokens >= params.min_tokens
            and repetition.finds(self.token_ids, self.num_prompt_tokens)
        ):
            return FinishReason.REPETITION
        return None
