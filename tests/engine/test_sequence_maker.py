from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest

from fastovms.engine.scheduling.blocks import BlockManager
from fastovms.engine.sequence_maker import SequenceMaker
from fastovms.errors import RequestError
from fastovms.params import BeamSearch, GenerationRequest, SamplingParams

PROMPT = [1, 2, 3]


@pytest.fixture
def maker() -> SequenceMaker:
    blocks = BlockManager(5, 4, enable_prefix_caching=False)
    return SequenceMaker(
        blocks, max_model_len=20, max_num_seqs=4, grammars=None, new_seed=lambda: 7
    )


def request(prompt: list[int] = PROMPT, priority: int = 0, **params: object) -> GenerationRequest:
    return GenerationRequest(
        "r",
        prompt,
        SamplingParams(**params),  # type: ignore[arg-type]
        priority=priority,
    )


def test_samples_share_a_prompt_and_draw_otherwise(maker: SequenceMaker) -> None:
    first, *others = maker.make(request(n=3, max_tokens=5))
    assert [sample.parent for sample in others] == [first, first]
    assert [sample.index for sample in (first, *others)] == [0, 1, 2]
    assert len({sample.seed for sample in (first, *others)}) == 3
    assert {sample.token_limit for sample in (first, *others)} == {len(PROMPT) + 5}
    [again] = maker.make(request(seed=7))
    assert again.seed == first.seed
    assert again.seq_id == 3


def test_samples_have_tokens_and_processors_of_their_own(maker: SequenceMaker) -> None:
    asked = replace(request(n=2, repetition_penalty=1.5), generated_token_ids=(4, 5))
    first, second = maker.make(asked)
    assert first.token_ids == second.token_ids == array("q", [*PROMPT, 4, 5])
    assert first.token_ids is not second.token_ids
    [mine], [other] = first.processors, second.processors
    assert mine is not other
    logits = np.ones(9, np.float32)
    mine(logits, array("q", [*PROMPT, 8]))
    logits = np.ones(9, np.float32)
    other(logits, array("q", PROMPT))
    assert np.flatnonzero(logits != 1).tolist() == PROMPT


def test_who_comes_later_is_later_in_the_queue(maker: SequenceMaker) -> None:
    [early], [late], [urgent] = (maker.make(request(priority=p)) for p in (0, 0, -1))
    assert urgent.rank < early.rank < late.rank


def test_a_search_begins_with_one_sequence(maker: SequenceMaker) -> None:
    search = request(beam_search=BeamSearch(2), max_tokens=2)
    maker.validate(search)
    [root] = sequences = maker.make(search)
    assert root.group is not None
    assert sequences is root.group.sequences, "the search adds to them and takes away"


@pytest.mark.parametrize(
    ("width", "num_prompt_tokens", "message"),
    [
        (5, 3, "5 beams cannot run: at most 4 sequences do"),
        (4, 19, "no room for 4 beams over a prompt of 19"),
    ],
)
def test_searches_that_could_never_run(
    maker: SequenceMaker, width: int, num_prompt_tokens: int, message: str
) -> None:
    search = request(list(range(num_prompt_tokens)), beam_search=BeamSearch(width))
    with pytest.raises(RequestError, match=message):
        maker.validate(search)
    maker.validate(replace(search, params=SamplingParams(n=width)))
