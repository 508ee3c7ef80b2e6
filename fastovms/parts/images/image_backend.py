"""The backend for image models: a thread that sends one image at a time to a process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from fastovms.backends.engine_thread import ComputeTurn
from fastovms.backends.job_thread import Job
from fastovms.backends.processes import send
from fastovms.backends.sliced_process import SlicedProcess, start_process
from fastovms.config import EngineConfig
from fastovms.params import ModelInfo
from fastovms.parts.images.image_worker import ImageMade, LoadImages, MakeImage, StepDone
from fastovms.parts.images.picture import (
    Edited,
    ImageInfo,
    ImageParams,
    Made,
    MadeImages,
    OnMade,
    OnStep,
    StaticShape,
    Step,
)
from fastovms.telemetry.log_format import form_in_use, level_in_use

logger = logging.getLogger(__name__)

_LOG_INTERVAL: Final = 10.0
"""The minimum seconds between two log lines about one request."""


class _Job(Job[MadeImages]):
    """The images of one request, complete or still to generate.

    Attributes:
        started_at: the time at which the first image was begun; None before.
        logged_at: the time at which progress was last logged.
    """

    def __init__(
        self,
        request_id: str,
        asked: MakeImage,
        num_images: int,
        client: str,
        on_step: OnStep,
        on_made: OnMade,
        queued_at: float,
    ) -> None:
        super().__init__(client, queued_at)
        self.request_id = request_id
        self.asked = asked
        self.num_images = num_images
        self.on_step = on_step
        self.on_made = on_made
        self.started_at: float | None = None
        self.logged_at = queued_at
        self.made = MadeImages()


class ImageBackend(SlicedProcess[_Job, ImageInfo]):
    """Generates images in an `image_worker` process. Clients take turns image by image."""

    name = "images"
    items = "requests for images"
    work = "makes images"

    last_step: tuple[int, int, float] | None = None
    """Width, height and seconds of the last step, including the time for which the process was
    suspended; None = no step yet."""

    @property
    def abilities(self) -> ImageInfo:
        return self._info

    async def make(
        self,
        params: ImageParams,
        edited: Edited | None,
        num_images: int,
        *,
        num_partials: int = 0,
        client: str,
        request_id: str,
        on_step: OnStep,
        on_made: OnMade = lambda number, made: None,
    ) -> MadeImages:
        """Generates the images of a request one after another; each image's seed is one higher than
        the last one's. If the caller is cancelled, generation stops at the next step.

        Args:
            num_partials: the number of partial images that `on_step` receives for each image.
            client: the key or address of the sender.
            on_step, on_made: called on the event loop.

        Raises:
            Overloaded: too many requests wait already.
            BackendUnavailable: the backend is not started, or closed.
            InvalidField: the pipeline rejects the parameters.
            EngineFailed: the model could not compute an image, or the process has died.
        """
        asked = MakeImage(params, edited, num_partials)
        with self._place(client):
            job = _Job(request_id, asked, num_images, client, on_step, on_made, self._clock())
            made: MadeImages = await self._result_of(job)
            return made

    # Thread

    def _compute(self, job: _Job) -> bool:
        """Generates the next image of a job. Returns whether further images remain."""
        began = self._clock()
        if job.started_at is None:
            job.started_at = job.logged_at = began
        number = len(job.made.images)
        params = job.asked.params.with_seed(number)
        asked = MakeImage(params, job.asked.edited, job.asked.num_partials)

        num_steps = num_done = 0

        def on_part(done: StepDone) -> None:
            nonlocal began, num_steps, num_done
            # The process waits for this answer.
            send(self._peer.connection, not job.is_given_up and not self._closing)
            now = self._clock()
            self.last_step = params.width, params.height, now - began
            began, num_steps, num_done = now, done.num_steps, done.step
            step = _step(job, number, done)
            self._link.call(_call_if_wanted, job, lambda: job.on_step(step))
            self._log(job, step, now)

        found = self._ask(asked, ImageMade, on_part)
        if job.is_given_up:
            return False
        num_steps = num_steps or params.expected_steps(edits=asked.edited is not None)
        if num_done < num_steps:  # OpenVINO GenAI may skip the last steps
            last = _step(job, number, StepDone(num_steps, num_steps, None))
            self._link.call(_call_if_wanted, job, lambda: job.on_step(last))
        made = Made(found.file, params.seed)
        job.made.images.append(made)
        self._link.call(_call_if_wanted, job, lambda: job.on_made(number, made))
        if number + 1 < job.num_images:
            return True
        job.made.queue_time = job.started_at - job.queued_at
        job.made.compute_time = self._clock() - job.started_at
        self._link.call(job.settle, job.made)
        return False

    def _log(self, job: _Job, step: Step, now: float) -> None:
        """Logs the progress of a job, unless the last line about it is less than `_LOG_INTERVAL`
        old."""
        if now - job.logged_at < _LOG_INTERVAL:
            return
        job.logged_at = now
        assert self.last_step is not None
        logger.info(
            "%s: request %s: step %d of %d, %.1f s a step",
            self.model.name,
            job.request_id,
            step.num_done,
            step.num_all,
            self.last_step[2],
        )


def _step(job: _Job, number: int, done: StepDone) -> Step:
    """Returns the progress of the whole request after a step of image `number`."""
    num_all = job.num_images * done.num_steps
    return Step(number * done.num_steps + done.step, num_all, number, done.partial)


def _call_if_wanted(job: _Job, tell: Callable[[], None]) -> None:
    if not job.done.done() and not job.is_given_up:
        tell()


def load_images(
    model_dir: Path,
    model: ModelInfo,
    config: EngineConfig,
    shape: StaticShape | None,
    turn: ComputeTurn,
) -> ImageBackend:
    """Loads an image model. Takes seconds, so call it in a thread. Raises ConfigurationError if a
    file is broken or the device cannot run the model. `shape` is the only supported image size;
    None = any size."""
    start = time.perf_counter()
    load = LoadImages(
        model_dir, config.device, config.plugin_config, shape, level_in_use(), form_in_use()
    )
    backend = ImageBackend(
        model,
        partial(start_process, "fastovms.parts.images.image_worker", load, ImageInfo),
        max_num_queued=config.max_num_queued_requests,
        turn=turn,
    )
    logger.info(
        "%s: model that generates images, loaded in %.1f s", model.name, time.perf_counter() - start
    )
    return backend
