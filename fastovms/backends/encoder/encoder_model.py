"""Compiles an encoder in segments, and computes batches of texts with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.backends.encoder.batch_shapes import padded_length
from fastovms.backends.encoder.encoder_graph import EncoderGraph
from fastovms.backends.encoder.graph_cutting import CARRIED, cut
from fastovms.encoding import EncoderText
from fastovms.errors import ConfigurationError

MAX_SEGMENTS: Final = 16
"""Into how many segments a graph is cut at most: further ones would cost more than they help."""


class EncoderModel:
    """A compiled encoder. One thread may use it at a time.

    Attributes:
        info: what it makes of texts.
        num_segments: a batch goes through all of them, one after the other.
    """

    def __init__(
        self,
        graph: EncoderGraph,
        *,
        device: str = "CPU",
        properties: Mapping[str, object] | None = None,
        pad_token_id: int = 0,
        max_length: int | None = None,
    ) -> None:
        """
        Args:
            max_length: how many positions it has; None = as many as there are tokens.

        Raises:
            ConfigurationError: the device cannot run it.
        """
        self.info = graph.info
        self._pad_token_id = pad_token_id
        self._max_length = max_length
        segments = cut(graph.model, MAX_SEGMENTS if device.startswith("CPU") else 1)
        try:
            core = ov.Core()
            compiled = [
                core.compile_model(each, device, {**(properties or {})}) for each in segments
            ]
            self._requests: list[Any] = [each.create_infer_request() for each in compiled]
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ConfigurationError(f"{device} cannot run the model: {reason}") from error
        self._names = [[value.get_any_name() for value in each.inputs] for each in compiled]

    @property
    def num_segments(self) -> int:
        return len(self._requests)

    def batch(self, texts: Sequence[EncoderText]) -> EncoderBatch:
        """Returns texts padded to the longest of them, or a little more."""
        longest = max(len(text.token_ids) for text in texts)
        length = padded_length(len(texts), longest, self._max_length)
        shape = len(texts), length
        token_ids = np.full(shape, self._pad_token_id, np.int64)
        attention_mask = np.zeros(shape, np.int64)
        token_type_ids = np.zeros(shape, np.int64)
        for row, text in enumerate(texts):
            end = len(text.token_ids)
            token_ids[row, :end] = text.token_ids
            attention_mask[row, :end] = 1
            if text.type_ids is not None:
                token_type_ids[row, :end] = text.type_ids
        return EncoderBatch(
            {
                "input_ids": token_ids,
                "attention_mask": attention_mask,
                "token_type_ids": token_type_ids,
                "position_ids": np.tile(np.arange(length, dtype=np.int64), (len(texts), 1)),
                "beam_idx": np.zeros(len(texts), np.int32),
            }
        )

    def compute(self, batch: EncoderBatch, segment: int) -> None:
        """Takes a batch through the next segment."""
        request = self._requests[segment]
        for index, name in enumerate(self._names[segment]):
            tensor = batch.carried if name == CARRIED else ov.Tensor(batch.inputs[name])
            request.set_input_tensor(index, tensor)
        request.infer()
        batch.carried = request.get_output_tensor(0)

    def warm_up(self) -> None:
        """Computes one text and drops the result: OpenVINO compiles kernels when it first needs
        them."""
        batch = self.batch([EncoderText(np.full(1, self._pad_token_id, np.int64))])
        for segment in range(self.num_segments):
            self.compute(batch, segment)


class EncoderBatch:
    """Texts that are computed together.

    Attributes:
        inputs: of the graph, by their names, each of B rows.
        carried: what the last segment has computed; it stays as it is until that segment is run
            again.
    """

    __slots__ = ("carried", "inputs")

    def __init__(self, inputs: Mapping[str, NDArray[np.generic]]) -> None:
        self.inputs = inputs
        self.carried: Any = None

    @property
    def num_tokens(self) -> int:
        """How many tokens there are, padding included."""
        return int(self.inputs["input_ids"].size)

    @property
    def rows(self) -> NDArray[np.float32]:
        """What the last segment has computed: f32 [B, width]."""
        rows: NDArray[np.float32] = self.carried.data
        return rows
