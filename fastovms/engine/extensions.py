"""The extension points of the engine: drafts of tokens, searches by beams, and grammars.

Parts implement them and the engine receives them as `EngineExtensions`. Without a part, a sequence
has no drafts, and searches and grammars are refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass

from fastovms.backend_stats import EngineCounters
from fastovms.engine.blocks import BlockManager
from fastovms.engine.model.model import Floats
from fastovms.engine.model.step_inputs import StepInputs
from fastovms.engine.scheduler import Chunk, Scheduler
from fastovms.engine.sequence import Sequence, SequenceGrammar
from fastovms.engine.step_costs import StepCosts
from fastovms.errors import RequestError
from fastovms.params import GenerationOutput, GenerationRequest, Grammar


class Drafter:
    """Drafts tokens for the sequences of an engine. This one drafts none."""

    def start(self, sequence: Sequence) -> None:
        """Prepares for a new sequence."""

    def propose(self, running: list[Sequence]) -> None:
        """Sets `draft_token_ids` of the sequences that decode in the next step."""

    def observe(self, chunks: AbstractSequence[Chunk], inputs: StepInputs, states: Floats) -> None:
        """Reads the hidden states of a step, [tokens, width], before its tokens are sampled."""

    def settle(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Clears a draft whose first `num_drafted` tokens were verified."""

    def finish(self, sequence: Sequence) -> None:
        """Frees what was kept for a sequence."""

    def check(self) -> None:
        """Asserts that the books balance."""


class BeamSearch(ABC):
    """One search for the best texts of a request, by several sequences that advance together.
    `sequences` are the beams; empty once the search has ended."""

    sequences: list[Sequence]

    @abstractmethod
    def discard(self, index: int) -> bool:
        """Drops an aborted sample. Returns whether any other sample is left."""

    @abstractmethod
    def take(self, sequence: Sequence, logits: Floats) -> bool:
        """Takes the raw logits of one beam, [vocab_size]. Returns whether those of all beams are
        complete; `advance` follows then."""

    @abstractmethod
    def advance(self, scheduler: Scheduler, seq_ids: Iterator[int]) -> list[GenerationOutput]:
        """Moves every beam by a token. Returns the outputs if the search has ended."""

    @abstractmethod
    def fail(self, scheduler: Scheduler, error: str) -> list[GenerationOutput]:
        """Ends the search without a result."""


class BeamSearches:
    """Makes the searches of an engine. This one refuses them."""

    def token_limit(self, request: GenerationRequest, limit: int, blocks: BlockManager) -> int:
        """Returns the maximum length of a beam in tokens, prompt included, if a sample may have
        `limit` tokens."""
        return limit

    def validate(self, request: GenerationRequest, token_limit: int, max_num_seqs: int) -> None:
        """Raises RequestError if the beams of a request could never run."""
        assert request.params.beam_search is not None
        raise RequestError(
            "beam search is not supported by this server", param=request.params.beam_search.param
        )

    def start(self, root: Sequence, request: GenerationRequest) -> BeamSearch:
        """Starts the search of a valid request at its first sequence."""
        raise AssertionError("validate refuses every search")


@dataclass(frozen=True, slots=True)
class EngineExtensions:
    """The additions of parts to an engine.

    Attributes:
        make_drafter: returns the drafter, which counts its drafts and reads the costs of steps.
        searches: returns what makes beam searches; called for requests that search.
        grammars: given a grammar and the length of a prompt, returns a function that makes the
            state of a further sample; None = the engine gets no requests with grammars.
    """

    make_drafter: Callable[[EngineCounters, StepCosts], Drafter] = lambda *_: Drafter()
    searches: Callable[[], BeamSearches] = BeamSearches
    grammars: Callable[[Grammar, int], Callable[[], SequenceGrammar]] | None = None
