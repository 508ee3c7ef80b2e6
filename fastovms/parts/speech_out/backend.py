"""The backend for speech synthesis models: a thread that sends one sentence at a time to a
process."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastovms.backends.engine_thread import ComputeTurn
from fastovms.backends.job_thread import Job
from fastovms.backends.sliced_process import SlicedProcess, start_process
from fastovms.config import EngineConfig
from fastovms.errors import EngineFailed
from fastovms.params import ModelInfo
from fastovms.parts.speech_out.encode import Samples
from fastovms.parts.speech_out.worker import LoadSpeaker, SpeakerInfo, SpeakText, Spoken
from fastovms.telemetry.log_format import form_in_use, level_in_use

logger = logging.getLogger(__name__)

Encode = Callable[[Samples, bool], bytes]
"""Returns the encoded bytes of further samples; the flag is whether they are the last. Called on
the backend's thread."""


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """The speech of a sentence.

    Attributes:
        data: the encoded audio.
        seconds: the length of the audio.
        queue_time, compute_time: in seconds.
    """

    data: bytes
    seconds: float
    queue_time: float
    compute_time: float


class _Job(Job[SpokenPiece]):
    """A sentence of one request."""

    def __init__(
        self, asked: SpeakText, encode: Encode, client: str, queued_at: float, *, is_last: bool
    ) -> None:
        super().__init__(client, queued_at)
        self.asked = asked
        self.encode = encode
        self.is_last = is_last


class SpeakingBackend(SlicedProcess[_Job, SpeakerInfo]):
    """Speaks texts in a `worker` process, sentence by sentence."""

    name = "speech-out"
    items = "sentences"
    work = "speaks"

    @property
    def speaker(self) -> SpeakerInfo:
        """The properties of the speech model."""
        return self._info

    async def speak(
        self, sentences: Sequence[SpeakText], encode: Encode, client: str
    ) -> AsyncGenerator[SpokenPiece, None]:
        """Yields the speech of each sentence; clients take turns. A sentence is computed when the
        caller has taken the previous one. If the caller closes the iterator, the remaining
        sentences are not computed.

        Raises:
            Overloaded: too many requests wait already.
            BackendUnavailable: the backend is not started, or closed.
            InvalidField: the pipeline cannot speak a sentence.
            EngineFailed: the audio cannot be encoded, or the process has died.
        """
        with self._place(client):
            for number, asked in enumerate(sentences, start=1):
                is_last = number == len(sentences)
                job = _Job(asked, encode, client, self._clock(), is_last=is_last)
                piece: SpokenPiece = await self._result_of(job)
                yield piece

    # Thread

    def _compute(self, job: _Job) -> bool:
        """Speaks the sentence of a job. Returns False, since no work remains."""
        start = self._clock()
        found = self._ask(job.asked, Spoken, lambda part: None)
        try:
            data = job.encode(found.samples, job.is_last)
        except Exception as error:  # PyAV has an exception for each of FFmpeg's errors
            raise EngineFailed(f"the audio cannot be encoded: {error}") from error
        piece = SpokenPiece(
            data,
            len(found.samples) / self._info.rate,
            start - job.queued_at,
            self._clock() - start,
        )
        self._link.call(job.settle, piece)
        return False


def load_speaker(
    model_dir: Path,
    model: ModelInfo,
    config: EngineConfig,
    turn: ComputeTurn,
    voices: Mapping[str, Path],
    languages: Iterable[str],
) -> SpeakingBackend:
    """Loads a speech synthesis model. Takes seconds, so call it in a thread. Raises
    ConfigurationError if a file is corrupt or the device cannot run the model. For `voices` and
    `languages` see `LoadSpeaker`."""
    start = time.perf_counter()
    load = LoadSpeaker(
        model_dir,
        config.device,
        config.plugin_config,
        voices,
        tuple(languages),
        level_in_use(),
        form_in_use(),
    )
    backend = SpeakingBackend(
        model,
        partial(start_process, "fastovms.parts.speech_out.worker", load, SpeakerInfo),
        max_num_queued=config.max_num_queued_requests,
        turn=turn,
    )
    logger.info(
        "%s: speech with the voices %s, loaded in %.1f s",
        model.name,
        ", ".join(voices) or "of the model",
        time.perf_counter() - start,
    )
    return backend
