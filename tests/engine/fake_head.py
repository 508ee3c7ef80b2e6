"""A target that returns hidden states, and a draft head that is always right if its inputs are
correct."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.step_inputs import StepInputs
from tests.engine.fake_model import VOCAB_SIZE, FakeModel, next_token

Text = tuple[int, ...]


class KnownTexts:
    """Numbers texts, so that a hidden state can represent one."""

    def __init__(self) -> None:
        self._numbers: dict[Text, int] = {}
        self._texts: list[Text] = []

    def state_of(self, text: Text) -> list[float]:
        """Returns the hidden state at the last token of a text."""
        if text not in self._numbers:
            self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return [self._numbers[text], len(text)]

    def text_of(self, state: NDArray[np.float32]) -> Text:
        text = self._texts[int(state[0])]
        assert len(text) == state[1]
        return text


class FakeTarget(FakeModel):
    """Returns a hidden state for each token of a step."""

    def __init__(self, texts: KnownTexts, block_size: int = 4) -> None:
        super().__init__(block_size)
        self._texts = texts

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        tokens = np.arange(len(inputs.input_ids))
        every = super().infer(inputs._replace(sampled_token_indices=tokens))
        begins, block_begins = inputs.subsequence_begins, inputs.block_indices_begins
        states = []
        for s in range(len(inputs.past_lens)):
            table = inputs.block_indices[block_begins[s] : block_begins[s + 1]]
            written = self._cache[table].reshape(-1)
            for t in range(begins[s], begins[s + 1]):
                text = tuple(written[: int(inputs.position_ids[t]) + 1].tolist())
                states.append(self._texts.state_of(text))
        self.hidden_states = np.array(states, np.float32)
        return every[inputs.sampled_token_indices]


class FakeHead(FakeModel):
    """A draft head that derives the text from the hidden state and the token after it, and stores
    the text's length in its cache. Its vocabulary is the target's in reverse: see `TOKEN_IDS`.

    Attributes:
        num_gaps: the number of times that positions within a text were omitted.
    """

    def __init__(self, texts: KnownTexts, block_size: int = 4) -> None:
        super().__init__(block_size)
        self._texts = texts
        self.num_gaps = 0

    def infer(self, inputs: StepInputs) -> NDArray[np.float32]:
        self.num_tokens_per_step.append(len(inputs.input_ids))
        assert inputs.hidden_states.shape == (len(inputs.input_ids), 1, 2)
        begins, block_begins = inputs.subsequence_begins, inputs.block_indices_begins
        texts: dict[int, Text] = {}
        for s, past_len in enumerate(inputs.past_lens):
            table = inputs.block_indices[block_begins[s] : block_begins[s + 1]]
            written = self._cache[table].reshape(-1)
            for t in range(begins[s], begins[s + 1]):
                position = int(past_len) + t - int(begins[s])
                assert position == inputs.position_ids[t]
                known = self._texts.text_of(inputs.hidden_states[t, 0])
                text = texts[t] = (*known, int(inputs.input_ids[t]))
                lengths = [*written[:position].tolist(), len(text)]
                assert -1 not in lengths, "reads a position that was never written"
                steps = np.diff([1, *lengths])
                assert (steps >= 1).all(), "positions are computed twice"
                assert np.count_nonzero(steps > 1) <= 1, "more than one gap"
                self.num_gaps += t == begins[s] and bool((steps > 1).any())
                block, offset = divmod(position, self.block_size)
                self._cache[table[block], offset] = len(text)
                written = self._cache[table].reshape(-1)
        sampled = [texts[int(t)] for t in inputs.sampled_token_indices]
        states = [self._texts.state_of(text) for text in sampled]
        self.hidden_states = np.array(states, np.float32).reshape(-1, 2)
        logits = np.zeros((len(sampled), VOCAB_SIZE), np.float32)
        for row, text in enumerate(sampled):
            logits[row, VOCAB_SIZE - 1 - next_token(text) % VOCAB_SIZE] = 30
        return logits


TOKEN_IDS = range(VOCAB_SIZE - 1, -1, -1)
