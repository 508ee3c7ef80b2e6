"""What a model has said is heard again as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.api.responses.resumption.kept_outputs import pack_outputs, unpack_outputs
from fastovms.params import FinishReason, GenerationOutput
from tests.fakes import token_logprobs

PLAIN = GenerationOutput(0, [1, 2, 70_000], None, 3, logprobs=[])
OUTPUTS = [
    PLAIN,
    replace(PLAIN, num_cached_tokens=16, logprobs=[token_logprobs(token, 2) for token in (3, 4)]),
    replace(PLAIN, token_ids=[], finish_reason=FinishReason.STOP, stop_token_id=9),
    replace(PLAIN, finish_reason=FinishReason.LENGTH, num_prompt_tokens=40),
]


@pytest.mark.parametrize("outputs", [[], OUTPUTS[:1], OUTPUTS])
def test_it_is_heard_word_for_word(outputs):
    assert unpack_outputs(pack_outputs(outputs)) == outputs


def test_what_measures_a_process_is_its_own():
    measured = replace(PLAIN, queue_time=0.5, num_accepted_tokens=2)
    assert unpack_outputs(pack_outputs([measured])) == [PLAIN]


@pytest.mark.parametrize(
    "data",
    [b"", b"other", pack_outputs([PLAIN])[:-5], pack_outputs([replace(PLAIN, token_ids=["a"])])],
    ids=["nothing", "other", "cut", "texts for tokens"],
)
def test_what_it_is_not(data):
    with pytest.raises(ValueError, match="not as it was kept"):
        unpack_outputs(data)
