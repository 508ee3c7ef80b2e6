"""Runs an infer request of OpenVINO with the inputs of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from fastovms.engine.model.graph.paging import SAMPLED_TOKEN_INDICES, is_cache
from fastovms.engine.model.raw_logits import RawLogits
from fastovms.engine.model.step_inputs import StepInputs


class StepRunner:
    """An infer request of OpenVINO, fed with `StepInputs`.

    A tensor whose shape is as it was is written into, not set again: to set one takes OpenVINO 20
    us in a running server, and a step has eight. To ask where the logits are takes 60 us, so on the
    host OpenVINO is told where to put them.
    """

    def __init__(self, compiled: ov.CompiledModel, *, is_on_gpu: bool) -> None:
        self._request = compiled.create_infer_request()
        self.set_tensor = self._request.set_tensor
        self._ports = {port.get_any_name(): port for port in compiled.inputs if not is_cache(port)}
        self._arrays: dict[str, NDArray[np.int32] | NDArray[np.int64]] = {}
        self._output = compiled.output(0)
        is_bf16 = self._output.get_element_type() == ov.Type.bf16
        self._dtype: np.dtype[Any] = np.dtype(np.uint16 if is_bf16 else np.float32)
        self._samples_in_graph = SAMPLED_TOKEN_INDICES in self._ports
        width = self._output.get_partial_shape()[-1]
        self._has_room = self._samples_in_graph and width.is_static and not is_on_gpu
        self._room: RawLogits = np.empty((0, 0), np.float32)

    def infer(self, inputs: StepInputs) -> RawLogits:
        request = self._request
        for name, port in self._ports.items():
            array = getattr(inputs, name)
            held = self._arrays.get(name)
            if held is not None and held.shape == array.shape:
                held[...] = array
            else:
                self._arrays[name] = held = array.copy()
                request.set_tensor(port, ov.Tensor(held, shared_memory=True))
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

    def _make_room(self, num_rows: int) -> None:
        """Makes room for so many rows of logits, or for twice as many as there was room for: a
        tensor may be shrunk and grown again, up to what it was at first."""
        num_rows = max(num_rows, 2 * len(self._room))
        shape = [num_rows, 1, self._output.get_partial_shape()[-1].get_length()]
        room = np.empty(shape, self._dtype)
        tensor = ov.Tensor(room, ov.Shape(shape), self._output.get_element_type())
        self._request.set_tensor(self._output, tensor)
        self._room = room[:, 0]
