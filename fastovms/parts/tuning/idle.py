"""Compiles a model with the fastest known settings, and measures them while the server is idle."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import openvino as ov

from fastovms.backends.engine_thread import ActiveEngines
from fastovms.backends.paged.backend import BackendExtension, WaitForRequests
from fastovms.backends.processes import ChildProcess, receive, send
from fastovms.config import EngineConfig
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE, ExportedModel
from fastovms.engine.model.model import PagedModel, Precisions
from fastovms.engine.model.paging import DEFAULT_MAX_MODEL_LEN
from fastovms.system.disk import DiskCache, file_identity, key_of
from fastovms.system.memory import num_usable_cpus

logger = logging.getLogger(__name__)

_FILE: Final = "choice.json"
_FORMAT: Final = 5
"""The version of the stored results and the measurement; a new version invalidates stored
results."""


class TunedModel(NamedTuple):
    """A compiled model.

    Attributes:
        token_budget: the maximum tokens of a step; None = unknown.
        is_to_be_measured: whether a measurement is useful and missing.
    """

    model: PagedModel
    token_budget: int | None
    is_to_be_measured: bool = False


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The settings that a model runs with. `name` is the name of the precisions."""

    name: str
    token_budget: int


def read_files(
    model_dir: Path, config: EngineConfig, max_model_len: int = DEFAULT_MAX_MODEL_LEN
) -> ExportedModel:
    """Reads the files of an exported model. Raises ConfigurationError if the paged engine does not
    support the model, or the device does not exist."""
    return ExportedModel(
        model_dir,
        device=config.device,
        properties=config.plugin_config,
        exact=config.precision == "exact",
        max_model_len=max_model_len,
    )


def load_tuned(
    files: ExportedModel,
    config: EngineConfig,
    cache: DiskCache,
    compile_now: Callable[[Sequence[Precisions]], tuple[Precisions, PagedModel]],
) -> TunedModel:
    """Compiles a model with the fastest known settings, by default with the precisions of `files`.
    Raises ConfigurationError if the device cannot run the model. `compile_now` compiles the model
    with the first of the given precisions that the device supports."""
    if not config.tune or not cache.is_kept:
        return TunedModel(compile_now(files.choices)[1], None)
    entry, kept = _find(cache, tuning_key(config, files), files)
    if kept is not None:
        choices = sorted(files.choices, key=lambda choice: choice.name != kept.name)
        precisions, model = compile_now(choices)
        return TunedModel(model, kept.token_budget if precisions.name == kept.name else None)
    if entry is not None:
        cache.discard(entry)
    model = compile_now(files.choices)[1]
    return TunedModel(model, None, is_to_be_measured=_is_worth_measuring(files, config))


def find_kept(files: ExportedModel, config: EngineConfig, cache: DiskCache) -> TuningResult | None:
    """Returns the stored result of a measurement of this model on this machine; None = no such
    result."""
    return _find(cache, tuning_key(config, files), files)[1]


def _is_worth_measuring(files: ExportedModel, config: EngineConfig) -> bool:
    if files.weights_size <= EXACT_WEIGHTS_SIZE:
        return False
    return len(files.choices) > 1 or config.max_num_batched_tokens is None


def tuning_key(config: EngineConfig, files: ExportedModel) -> str:
    """Returns the cache key: a hash of the model, the machine and all settings that affect the
    speed."""
    names = ("openvino_model.xml", "openvino_model.bin")
    core = ov.Core()
    return key_of(
        _FORMAT,
        file_identity(files.model_dir / name for name in names),
        ov.get_version(),
        files.device,
        str(core.get_property(files.device, "FULL_DEVICE_NAME")),
        num_usable_cpus(),
        [choice.name for choice in files.choices],
        {name: str(value) for name, value in config.plugin_config.items()},
    )


def _find(
    cache: DiskCache, key: str, files: ExportedModel
) -> tuple[Path | None, TuningResult | None]:
    """Returns the directory of a stored result, and the result; each is None if missing or
    invalid."""
    entry = cache.find("tuning", key)
    if entry is None:
        return None, None
    return entry, _read(entry, {choice.name for choice in files.choices})


def keep_result(cache: DiskCache, key: str, finding: TuningResult) -> Path | None:
    """Stores a result in the disk cache instead of an earlier one. Returns its directory; None =
    it cannot be written."""

    def fill(directory: Path) -> None:
        (directory / _FILE).write_text(json.dumps(asdict(finding)))

    return cache.put("tuning", key, fill, replace=True)


def _read(entry: Path, names: Set[str]) -> TuningResult | None:
    """Returns a stored result; None = invalid. `names` are the allowed names of precisions."""
    try:
        content: Any = json.loads((entry / _FILE).read_bytes())
        name, budget = content["name"], content["token_budget"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(name, str) or not isinstance(budget, int):
        return None
    if name not in names or budget < 1:
        return None
    return TuningResult(name, budget)


IDLE_SECONDS: Final = 5.0
"""The seconds for which the engines must have been idle before a measurement, so that a pause
between two requests does not count as idle."""


class Measurement(NamedTuple):
    """A measurement to make, and where its result is stored. `name` is the model's name for the
    log."""

    name: str
    model_dir: Path
    config: EngineConfig
    cache: DiskCache


class TuningProcess:
    """The process that runs `tuning.process`. It is killed when the thread that started it ends."""

    def __init__(self, measurement: Measurement) -> None:
        self._process = ChildProcess("fastovms.parts.tuning.process", dies_with_thread=True)
        send(self._process.connection, measurement)

    def pause(self) -> None:
        """Suspends the process by a signal until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes the suspended process."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills the process."""
        self._process.kill()

    def result(self) -> str:
        """Waits for the end of the process, and returns its result or its error as text."""
        try:
            found = str(receive(self._process.connection))
        except (EOFError, OSError):
            found = ""
        exit_description = self._process.close()
        return found or f"the process that measures {exit_description}"


class IdleTuning:
    """Runs measurements while the server's engines are idle, one after another, each in a process
    of its own. The process starts when all engines have been idle for some seconds, and is
    suspended as soon as one of them has work. Thread-safe.

    Args:
        engines: counts the working engines; measurements run only while it is 0.
        start: starts the measuring process.
        delay: the seconds for which all engines must have been idle.
    """

    def __init__(
        self,
        engines: ActiveEngines,
        start: Callable[[Measurement], TuningProcess] = TuningProcess,
        delay: float = IDLE_SECONDS,
    ) -> None:
        self._start = start
        self._delay = delay
        self._changed = threading.Condition()
        self._num_working = 0
        self._num_occupied = 0
        self._is_paused = False
        self._is_dropped = False
        self._waiting: deque[Measurement] = deque()
        self._process: TuningProcess | None = None
        self._thread: threading.Thread | None = None
        engines.watch(self._set_working)

    @property
    def is_measuring(self) -> bool:
        """Whether a measurement waits or runs."""
        return self._thread is not None

    def add(self, measurement: Measurement) -> None:
        """Queues a measurement, which starts once the server is idle."""
        with self._changed:
            self._waiting.append(measurement)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="idle-tuning", daemon=True)
                self._thread.start()

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Prevents measurements while the context is open, for example while a client waits for a
        model or a model is loaded."""
        self._set_occupied(1)
        try:
            yield
        finally:
            self._set_occupied(-1)

    def drop(self, measurement: Measurement) -> None:
        """Cancels a measurement that has not ended."""
        with self._changed:
            if self._process is not None and self._waiting[0] == measurement:
                self._is_dropped = True
                self._process.kill()
            elif measurement in self._waiting:
                self._waiting.remove(measurement)

    def _set_working(self, num_working: int) -> None:
        with self._changed:
            self._num_working = num_working
            self._on_change()

    def _set_occupied(self, difference: int) -> None:
        with self._changed:
            self._num_occupied += difference
            self._on_change()

    def _is_idle(self) -> bool:
        return self._num_working == 0 and self._num_occupied == 0

    def _on_change(self) -> None:
        if not self._is_idle() and self._process is not None:
            self._process.pause()
            if not self._is_paused:
                logger.info(
                    "tuning: measuring %s is interrupted by requests, and continues when the "
                    "server is idle",
                    self._waiting[0].name,
                )
            self._is_paused = True
        self._changed.notify_all()

    def _run(self) -> None:
        """Runs the queued measurements. The processes are started on this thread, because they are
        killed when it ends."""
        with self._changed:
            while self._waiting:
                self._changed.wait_for(self._is_idle)
                if self._changed.wait_for(lambda: not self._is_idle(), self._delay):
                    continue
                if self._process is not None:
                    self._process.resume()
                elif self._waiting and not self._begin(self._waiting[0]):
                    self._waiting.popleft()
                self._changed.wait_for(lambda: not self._is_idle() or self._process is None)
            self._thread = None

    def _begin(self, measurement: Measurement) -> bool:
        """Starts the process of a measurement. Returns whether that succeeded."""
        try:
            process = self._start(measurement)
        except OSError as error:
            logger.warning("tuning: cannot start a measurement: %s", error)
            return False
        logger.info(
            "tuning: the server is idle; measuring which settings run %s fastest",
            measurement.name,
        )
        self._process = process
        self._is_paused = self._is_dropped = False
        thread = threading.Thread(target=self._end, args=(process,), daemon=True)
        thread.start()
        return True

    def _end(self, process: TuningProcess) -> None:
        """Waits in another thread for the end of a process, and logs its result."""
        found = process.result()
        with self._changed:
            measurement = self._waiting.popleft()
            self._process = None
            if self._is_dropped:
                found = "interrupted, as the model leaves; a later start measures it again"
            logger.info("tuning: result for %s: %s", measurement.name, found)
            self._changed.notify_all()


class TunedBackend(BackendExtension):
    """Queues the measurement of a model once earlier extensions have prepared their kernels, which
    would slow it down and distort the result. Cancels it when the backend is closed."""

    def __init__(self, tuning: IdleTuning, measurement: Measurement) -> None:
        self._tuning = tuning
        self._measurement = measurement

    def prepare(self, may_go_on: WaitForRequests) -> None:
        if may_go_on(0.0, 0.0):
            self._tuning.add(self._measurement)
        if not may_go_on(0.0, 0.0):  # closed meanwhile
            self._tuning.drop(self._measurement)

    def close(self) -> None:
        self._tuning.drop(self._measurement)
