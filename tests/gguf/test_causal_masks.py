"""Masks, computed for a few tokens."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from fastovms.gguf.causal_masks import build_masks


@pytest.mark.parametrize(
    ("num_tokens", "given", "window", "causal", "windowed"),
    [
        (3, [1, 1, 1], 2, ["x..", "xx.", "xxx"], ["x..", "xx.", ".xx"]),
        (1, [1, 1, 1, 1], 2, ["xxxx"], ["..xx"]),
        (2, [0, 1, 1], 9, [".x.", ".xx"], [".x.", ".xx"]),
        (2, [1, 1], 0, ["x.", "xx"], None),
    ],
)
def test_what_each_token_sees(
    num_tokens: int, given: list[int], window: int, causal: list[str], windowed: list[str] | None
) -> None:
    ids = opset13.parameter([-1, -1], np.int64)
    mask = opset13.parameter([-1, -1], np.int64)
    masks = build_masks(ids, mask, window)
    assert (masks.windowed is None) is (windowed is None)
    nodes = [node for node in masks if node is not None]
    compiled = ov.Core().compile_model(ov.Model(nodes, [ids, mask]), "CPU")
    found = compiled([np.zeros((1, num_tokens), np.int64), np.array([given])])
    for index, expected in enumerate(filter(None, (causal, windowed))):
        scores = np.asarray(found[index])
        assert scores.shape == (1, 1, num_tokens, len(given))
        seen = ["".join("x" if value == 0 else "." for value in row) for row in scores[0, 0]]
        assert seen == expected
        assert scores.min() >= np.finfo(np.float16).min
