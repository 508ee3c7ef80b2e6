"""The process that tries grammars with OpenVINO GenAI's compiler.

A grammar that the compiler rejects would end the whole pipeline, and a complex one may run
endlessly or crash. The result does not depend on the model, so the package's small demo model is
used.
"""

from __future__ import annotations

import re
from multiprocessing.connection import Connection
from typing import Any, Final

import openvino_genai as genai

from fastovms.backends.processes import limit_time
from fastovms.engine.model.devices import reason_of
from fastovms.params import Grammar
from fastovms.parts.genai.generation_config import structured_output
from fastovms.parts.grammars.trials import Verdict
from fastovms.server_config import DEMO_MODEL

_WHOSE: Final = "by the compiler of the genai backend, which runs this model"
_PLACE: Final = re.compile(r"^\[[0-9:]+\] \S+?:[0-9]+: ")
"""The prefix of the compiler's messages: the position in its own source code."""


def serve(connection: Connection[Any, Any], seconds: str) -> None:
    """Answers each grammar from a `Trial` with a verdict, and continues after an error. A grammar
    that takes more than `seconds` of CPU time ends the process."""
    while True:
        pipeline = _load()
        fault = ""
        while not fault:
            connection.send(None)
            number, grammar = connection.recv()
            limit_time(float(seconds))
            fault = _try(pipeline, grammar)
            limit_time(0)
            connection.send((number, Verdict(fault)))


def _load() -> genai.ContinuousBatchingPipeline:
    return genai.ContinuousBatchingPipeline(DEMO_MODEL, genai.SchedulerConfig(), "CPU")


def _try(pipeline: genai.ContinuousBatchingPipeline, grammar: Grammar) -> str:
    config = genai.GenerationConfig()
    config.apply_chat_template = False
    config.max_new_tokens = 1
    try:
        config.structured_output_config = structured_output(grammar)
        handle = pipeline.add_request(0, "a", config)
        while pipeline.has_non_finished_requests():
            pipeline.step()
        del handle
    except Exception as error:
        return f"{_WHOSE}: {_PLACE.sub('', reason_of(error)) or type(error).__name__}"
    return ""
