"""The process that compares the log probabilities of OpenVINO GenAI's pipeline with those of the
exported graph, for a short text. The process isolates memory use and crashes of the pipeline."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import openvino as ov
import openvino_genai as genai
from numpy.typing import NDArray

from fastovms.backends.model_task import graph_file
from fastovms.backends.processes import WorkerFailed, receive, send
from fastovms.engine.model.devices import reason_of
from fastovms.errors import RequestError
from fastovms.params import GenerationRequest, ModelInfo, SamplingParams
from fastovms.parts.comparison.graph_comparison import PROPERTIES, UnknownInput, compute_plain
from fastovms.parts.genai.generation_config import generation_config
from fastovms.parts.genai.pipeline import PromptReader
from fastovms.parts.genai.support import DraftSource

_PROMPT: Final = "A quick brown fox jumps over 13 lazy dogs; 'why?' asks {nobody} in the garden."

_NUM_TOKENS: Final = 24
"""The maximum number of generated tokens. They are sampled, because greedy text soon repeats
itself, and every model is certain of repeated tokens."""

_MAX_PART: Final = 16
"""The maximum number of tokens of a step, so that the prompt is computed in several steps."""

_NUM_BLOCKS: Final = 16


class _ReferenceFailedError(Exception):
    """Raised if the exported graph cannot be computed; the message is the reason."""


class _Text(NamedTuple):
    """The token ids of a prompt and of the pipeline's generated text, and the log probabilities of
    the latter."""

    token_ids: list[int]
    logprobs: list[float]


def largest_difference(model_dir: Path, model: ModelInfo) -> float:
    """Returns the largest difference of log probabilities. Raises RequestError if the text exceeds
    the model's context; RuntimeError if the pipeline cannot compute the text; _ReferenceFailedError
    if the exported graph cannot be computed; UnknownInput if the graph has an unknown input."""
    text = _generate(model_dir, model)  # the pipeline is freed when the function returns
    core = ov.Core()
    token_ids = np.array([text.token_ids[:-1]], np.int64)
    inputs: dict[str, NDArray[Any]] = {"input_ids": token_ids}
    if model.takes_images:
        inputs = {"inputs_embeds": _embeddings(core, model_dir, model, token_ids)}
    try:
        (expected,) = compute_plain(core, core.read_model(graph_file(model_dir)), inputs)
    except RuntimeError as error:
        raise _ReferenceFailedError(reason_of(error)) from None
    num_rows = min(len(expected), len(text.logprobs))
    rows = np.arange(-num_rows, 0)
    chosen = expected[rows, text.token_ids[-num_rows:]]
    return float(np.abs(chosen - text.logprobs[-num_rows:]).max())


def _generate(model_dir: Path, model: ModelInfo) -> _Text:
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = _MAX_PART
    scheduler.enable_prefix_caching = False
    scheduler.cache_size = 0
    scheduler.num_kv_blocks = _NUM_BLOCKS
    pipeline = genai.ContinuousBatchingPipeline(model_dir, scheduler, "CPU", dict(PROPERTIES))
    tokenizer = pipeline.get_tokenizer()
    prompt = tokenizer.encode(_PROMPT).input_ids.data[0].tolist()[: model.max_model_len // 2]
    params = SamplingParams(temperature=1, ignore_eos=True, logprobs=1)
    request = GenerationRequest("", prompt, params)
    arguments = PromptReader(tokenizer, takes_images=model.takes_images).arguments(request)
    config = generation_config(
        params,
        index=0,
        seed=0,
        max_length=model.max_model_len,
        max_new_tokens=min(_NUM_TOKENS, model.max_model_len - len(prompt)),
        assistance=DraftSource(),
    )
    handle = pipeline.add_request(0, *arguments, config)
    text = _Text(prompt, [])
    while pipeline.has_non_finished_requests():
        pipeline.step()
        while handle.can_read():
            for part in handle.read().values():
                text.token_ids.extend(part.generated_ids)
                text.logprobs.extend(part.generated_log_probs)
    return text


def _embeddings(
    core: ov.Core, model_dir: Path, model: ModelInfo, token_ids: NDArray[np.int64]
) -> NDArray[np.float32]:
    path = model_dir / "openvino_text_embeddings_model.xml"
    found: NDArray[np.float32] = core.compile_model(path, "CPU", PROPERTIES)([token_ids])[0]
    # The pipeline scales embeddings of some models, such as MiniCPM.
    scale = model.config.get("scale_emb", 1)
    return found * np.float32(scale) if isinstance(scale, int | float) else found


def serve(connection: Connection[Any, Any]) -> None:
    """Receives a model's directory and facts, and answers with the largest difference, with the
    reason why the two cannot be compared, or with the error of a model that cannot be computed."""
    answer: float | str | WorkerFailed
    try:
        answer = largest_difference(*receive(connection))
    except UnknownInput as error:
        answer = f"the graph has an unknown input {error}"
    except _ReferenceFailedError as error:
        answer = f"the exported graph cannot be computed: {error}"
    except RequestError as error:
        answer = str(error)
    except RuntimeError as error:
        answer = WorkerFailed(reason_of(error))
    send(connection, answer)
