"""A pipeline of OpenVINO GenAI whose model repeats its prompt, to show which texts its grammars
allow."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
from openvino import opset15 as op
from openvino.op.util import Variable, VariableInfo

from fastovms.server_config import DEMO_MODEL
from fastovms.text.tokenizer import Tokenizer

LENGTH = 256
"""The number of tokens of every prompt, after which the model repeats each token."""

_VOCAB_SIZE = 1536
_EOS = 2
_LOGIT = 50.0
_TEMPERATURE = 6.5
"""The temperature at which the model prefers the prompt's token where it is allowed, and otherwise
chooses any token."""


class RepeatingPipeline:
    """A pipeline with the demo model's vocabulary."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.load(DEMO_MODEL)
        with tempfile.TemporaryDirectory() as folder:
            for path in DEMO_MODEL.iterdir():
                if not path.name.startswith("openvino_model"):
                    shutil.copy(path, folder)
            ov.save_model(_model(), Path(folder) / "openvino_model.xml", compress_to_fp16=False)
            self._pipeline = genai.LLMPipeline(folder, "CPU", ATTENTION_BACKEND="SDPA")

    def sample(
        self, output: genai.StructuredOutputConfig, wish: Sequence[int], seed: int
    ) -> list[int]:
        """Returns the tokens of a text that a grammar allows, mostly the desired ones."""
        config = _config(output)
        config.do_sample = True
        config.temperature = _TEMPERATURE
        config.rng_seed = seed
        return self._generate(config, wish)

    def allowed(self, output: genai.StructuredOutputConfig, token_ids: Sequence[int]) -> list[int]:
        """Returns the tokens up to the first that a grammar does not allow, and the end token if it
        is allowed then."""
        assert len(token_ids) < LENGTH
        found = self._generate(_config(output), [*token_ids, _EOS])
        wanted = [*token_ids, _EOS]
        same = 0
        while same < min(len(found), len(wanted)) and found[same] == wanted[same]:
            same += 1
        return wanted[:same]

    def allows(self, output: genai.StructuredOutputConfig, text: str) -> bool:
        """Returns whether a grammar allows a whole text."""
        token_ids = self.tokenizer.encode(text)
        return self.allowed(output, token_ids) == [*token_ids, _EOS]

    def _generate(self, config: genai.GenerationConfig, prompt: Sequence[int]) -> list[int]:
        padded = [*prompt, *[_EOS] * LENGTH][:LENGTH]
        found = self._pipeline.generate(ov.Tensor(np.array([padded], np.int64)), config)
        return [int(token_id) for token_id in found.tokens[0]]


def _config(output: genai.StructuredOutputConfig) -> genai.GenerationConfig:
    config = genai.GenerationConfig()
    config.apply_chat_template = False
    config.max_new_tokens = LENGTH - 1
    config.eos_token_id = _EOS
    config.stop_token_ids = {_EOS}
    config.include_stop_str_in_output = True
    config.structured_output_config = output
    return config


def _model() -> ov.Model:
    """Returns a model whose state is the tokens so far."""

    def parameter(name: str, rank: int, kind: ov.Type) -> ov.Node:
        node = op.parameter([-1] * rank, kind, name=name)
        node.output(0).set_names({name})
        return node

    def constant(value: object) -> ov.Node:
        return op.constant(np.array(value, np.int64))

    token_ids = parameter("input_ids", 2, ov.Type.i64)
    mask = parameter("attention_mask", 2, ov.Type.i64)
    positions = parameter("position_ids", 2, ov.Type.i64)
    beams = parameter("beam_idx", 1, ov.Type.i32)
    info = VariableInfo()
    info.data_shape, info.data_type = ov.PartialShape([-1, -1]), ov.Type.f32
    info.variable_id = "seen"
    seen = Variable(info)
    new = op.convert(token_ids, "f32")
    # A constant length of 0 would never change.
    highest = op.unsqueeze(op.reduce_max(positions, constant([0, 1])), constant(0))
    none = op.slice(
        new, constant([0]), op.multiply(highest, constant([0])), constant([1]), constant([1])
    )
    before = op.gather(op.read_value(none, seen), beams, constant(0))
    together = op.concat([before, new], 1)
    place = op.maximum(op.subtract(positions, constant(LENGTH - 1)), constant(0))
    repeated = op.convert(op.gather_elements(together, place, 1), "i64")
    logits = op.one_hot(
        repeated,
        constant(_VOCAB_SIZE),
        op.constant(np.float32(_LOGIT)),
        op.constant(np.float32(0)),
        -1,
    )
    logits.output(0).set_names({"logits"})
    inputs = [token_ids, mask, positions, beams]
    return ov.Model([op.result(logits)], [op.assign(together, seen)], inputs, "repeating")
