"""The extension points of the engine: draft tokens, beam searches, and grammars.

Parts implement them, and the engine receives them as `EngineExtensions`. Without parts, sequences
have no drafts, and searches and grammars are refused.
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
    """Proposes draft tokens for the sequences of an engine. This base class proposes none."""

    def start(self, sequence: Sequence) -> None:
        """Prepares for a new sequence."""

    def propose(self, running: list[Sequence]) -> None:
        """Sets `draft_token_ids` of the sequences that decode in the next step."""

    def observe(self, chunks: AbstractSequence[Chunk], inputs: StepInputs, states: Floats) -> None:
        """Reads the hidden states of a step, [tokens, width], before the step's tokens are
        sampled."""

    def settle(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Clears a draft of which the first `num_drafted` tokens were verified and `num_accepted`
        accepted."""

    def finish(self, sequence: Sequence) -> None:
        """Frees the data of a finished sequence."""

    def check(self) -> None:
        """Asserts that the internal state is consistent."""


class BeamSearch(ABC):
    """One search for the best continuations of a request, by several sequences that advance
    together. `sequences` are the beams; empty once the search has ended."""

    sequences: list[Sequence]

    @abstractmethod
    def discard(self, index: int) -> bool:
        """Drops an aborted sample. Returns whether any other sample is left."""

    @abstractmethod
    def take(self, sequence: Sequence, logits: Floats) -> bool:
        """Receives the raw logits of one beam, [vocab_size]. Returns whether the logits of all
        beams are complete; call `advance` then."""

    @abstractmethod
    def advance(self, scheduler: Scheduler, seq_ids: Iterator[int]) -> list[GenerationOutput]:
        """Extends every beam by a token. Returns the outputs if the search has ended."""

    @abstractmethod
    def fail(self, scheduler: Scheduler, error: str) -> list[GenerationOutput]:
        """Ends the search with an error. Returns the outputs that report it."""


class BeamSearches:
    """Creates the beam searches of an engine. This base class refuses them."""

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
        raise AssertionError("`validate` refuses all requests with beam search")


@dataclass(frozen=True, slots=True)
class EngineExtensions:
    """The extensions that parts add to an engine.

    Attributes:
        make_drafter: returns the drafter, given the counters of drafts and the step costs.
        searches: returns the factory of beam searches; called for requests with beam search.
        grammars: given a grammar and a prompt length, returns a function that creates the grammar
            state of one sample; None = the engine gets no requests with grammars.
    """

    make_drafter: Callable[[EngineCounters, StepCosts], Drafter] = lambda *_: Drafter()
    searches: Callable[[], BeamSearches] = BeamSearches
    grammars: Callable[[Grammar, int], Callable[[], SequenceGrammar]] | None = None
