"""Runs a model on an NPU, one request at a time.

OpenVINO does not support paged attention on an NPU, so `ContinuousBatchingPipeline` cannot run
there. `LLMPipeline` can, with a limited length of prompts and answers. This module gives it the
part of the former's interface that the worker uses. The module has not been run on an NPU.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import openvino as ov
import openvino_genai as genai

from fastovms.backends.model_task import is_integer
from fastovms.config import EngineConfig
from fastovms.errors import ConfigurationError

MAX_PROMPT_LEN: Final = "MAX_PROMPT_LEN"
MIN_RESPONSE_LEN: Final = "MIN_RESPONSE_LEN"

_DEFAULTS: Final = {MAX_PROMPT_LEN: 1024, MIN_RESPONSE_LEN: 128}
"""The pipeline's default lengths in tokens, for settings missing from `--plugin-config`."""

_CLOSE_TIMEOUT: Final = 5.0


class StaticLengths(NamedTuple):
    """The lengths in tokens that the model is compiled for."""

    prompt: int
    answer: int

    @classmethod
    def of(cls, config: EngineConfig) -> StaticLengths:
        """Returns the lengths from `--plugin-config`, or the defaults. Raises ConfigurationError if
        a length is not a positive integer."""
        lengths = {name: config.plugin_config.get(name, least) for name, least in _DEFAULTS.items()}
        for name, value in lengths.items():
            if not is_integer(value) or int(str(value)) < 1:
                raise ConfigurationError(
                    f"plugin_config {name} must be an integer of at least 1, not {value!r}"
                )
        return cls(*(int(str(lengths[name])) for name in (MAX_PROMPT_LEN, MIN_RESPONSE_LEN)))


class _GenerationEnded(NamedTuple):
    """Signals the end of a generation, with its error; None = no error."""

    error: Exception | None


class OneRequestPipeline:
    """An `LLMPipeline` with the methods of `ContinuousBatchingPipeline` that the worker uses.
    `pipeline` generates on a separate thread, and `step` waits for its tokens."""

    def __init__(self, pipeline: genai.LLMPipeline, lengths: StaticLengths) -> None:
        self._pipeline = pipeline
        self._lengths = lengths
        self._handle: OneRequestHandle | None = None

    def get_tokenizer(self) -> Any:
        return self._pipeline.get_tokenizer()

    def get_metrics(self) -> Any:
        """Returns an object with the used share of the KV cache in percent: 100 while a request
        runs, otherwise 0."""
        return SimpleNamespace(cache_usage=100.0 if self._handle is not None else 0.0)

    def add_request(
        self, request_id: int, prompt: ov.Tensor | str, config: genai.GenerationConfig
    ) -> OneRequestHandle:
        """Starts a generation. Raises ValueError if the prompt is too long for the compiled model.

        Args:
            prompt: int64 [1, tokens], or a text.
        """
        if isinstance(prompt, str):
            prompt = self.get_tokenizer().encode(prompt).input_ids
        num_tokens = prompt.shape[-1]
        if num_tokens > self._lengths.prompt:
            raise ValueError(
                f"the prompt has {num_tokens} tokens, but the model is compiled for at most "
                f"{self._lengths.prompt}: raise {MAX_PROMPT_LEN} in --plugin-config"
            )
        assert self._handle is None, "the worker adds one request at a time"
        self._handle = OneRequestHandle(self._pipeline, prompt, config)
        return self._handle

    def has_non_finished_requests(self) -> bool:
        return self._handle is not None

    def step(self) -> None:
        """Waits for the next tokens or the end of the request. Raises Exception if the pipeline has
        failed."""
        if self._handle is not None and not self._handle.advance():
            self._handle = None


class OneRequestHandle:
    """A running generation, with the methods of `GenerationHandle` that the worker uses."""

    def __init__(
        self, pipeline: genai.LLMPipeline, prompt: ov.Tensor, config: genai.GenerationConfig
    ) -> None:
        self._events: queue.SimpleQueue[list[int] | _GenerationEnded] = queue.SimpleQueue()
        self._unread: list[int] = []
        self._status = genai.GenerationStatus.RUNNING
        self._finish_reason = genai.GenerationFinishReason.NONE
        self._num_left = config.max_new_tokens
        self._stop_token_ids = set(config.stop_token_ids)
        if not config.ignore_eos:
            self._stop_token_ids.add(config.eos_token_id)
        self._last: int | None = None
        self._is_cancelled = False
        self._is_read = False
        self._thread = threading.Thread(
            target=self._generate, args=(pipeline, prompt, config), name="npu", daemon=True
        )
        self._thread.start()

    def _generate(
        self, pipeline: genai.LLMPipeline, prompt: ov.Tensor, config: genai.GenerationConfig
    ) -> None:
        error = None
        try:
            pipeline.generate(prompt, config, _Streamer(self._take))
        except Exception as caught:  # raised in the step that waits for the end
            error = caught
        self._events.put(_GenerationEnded(error))

    def _take(self, token_ids: list[int]) -> bool:
        """Receives new tokens on the pipeline's thread. Returns whether to continue."""
        self._events.put(token_ids)
        return not self._is_cancelled

    def advance(self) -> bool:
        """Waits for the next tokens or the end. Returns whether the generation continues."""
        while not isinstance(event := self._events.get(), _GenerationEnded):
            if self._is_cancelled:
                continue
            self._unread += event
            self._num_left -= len(event)
            self._last = event[-1] if event else self._last
            if self._last not in self._stop_token_ids:  # otherwise the end event follows
                return True
        self._thread.join(_CLOSE_TIMEOUT)
        if event.error is not None:
            raise event.error
        reasons = genai.GenerationFinishReason
        has_stopped = self._num_left > 0 or self._last in self._stop_token_ids
        self._finish_reason = reasons.STOP if has_stopped else reasons.LENGTH
        self._status = genai.GenerationStatus.FINISHED
        return False

    def get_status(self) -> Any:
        return self._status

    def can_read(self) -> bool:
        has_ended = self._status == genai.GenerationStatus.FINISHED
        return bool(self._unread) or (has_ended and not self._is_read)

    def read(self) -> dict[int, Any]:
        """Returns the tokens since the last call, and the finish reason if the generation has
        ended."""
        token_ids, self._unread = self._unread, []
        self._is_read = self._status == genai.GenerationStatus.FINISHED
        part = SimpleNamespace(
            generated_ids=token_ids,
            generated_log_probs=[],
            finish_reason=self._finish_reason,
        )
        return {0: part}

    def cancel(self) -> None:
        self._is_cancelled = True


class _Streamer(genai.StreamerBase):  # type: ignore[misc]
    """Passes tokens to a callback when they are generated."""

    def __init__(self, take: Callable[[list[int]], bool]) -> None:
        super().__init__()
        self._take = take

    def write(self, token: int | list[int]) -> Any:
        token_ids = [token] if isinstance(token, int) else list(token)
        status = genai.StreamingStatus
        return status.RUNNING if self._take(token_ids) else status.CANCEL

    def end(self) -> None:
        """Does nothing: the return of `generate` signals the end."""


def load_one_request_pipeline(
    model_dir: Path, config: EngineConfig, device: str
) -> tuple[OneRequestPipeline, StaticLengths]:
    """Loads a model on an NPU. Raises ConfigurationError if a setting is not supported on an NPU;
    RuntimeError if the device cannot run the model."""
    if config.draft_model is not None or config.enable_prompt_lookup:
        raise ConfigurationError(
            f"--draft-model and --enable-prompt-lookup cannot be used on {device}"
        )
    lengths = StaticLengths.of(config)
    properties = {
        **config.plugin_config,
        MAX_PROMPT_LEN: lengths.prompt,
        MIN_RESPONSE_LEN: lengths.answer,
    }
    pipeline = genai.LLMPipeline(model_dir, device, **properties)
    return OneRequestPipeline(pipeline, lengths), lengths
