"""Prepares kernels of our own for steps of few rows of a model that is being served already."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import openvino as ov

from fastovms import __version__
from fastovms.backend_stats import BackendStats
from fastovms.backends.paged.backend import BackendExtension
from fastovms.engine.model.devices import reason_of
from fastovms.engine.model.model import PagedModel, RunnerFactory
from fastovms.system.disk import DiskCache, file_identity, key_of
from fastovms.system.memory import find_trim

if TYPE_CHECKING:
    from fastovms.parts.decode_kernels.few_rows import FewRowVariants

logger = logging.getLogger(__name__)

_MAX_SECONDS: Final = 3.0
_NUM_ROUNDS: Final = 5
"""How long, and how often, steps of one size are measured at most."""


_CHECKED: Final = "kernels"
"""The kind of the cache's entries for kernels that have passed their check."""

_MIN_GAIN_OF_ONE: Final = 1.35
"""How much faster the kernels must compute steps of one row where the graph for these is not
compiled yet, which gains up to 1.3."""


class _DroppedError(Exception):
    """The model is not served any more."""


class _WrongError(Exception):
    """The kernels are less exact than OpenVINO, as the message says."""


class DecodeKernels(BackendExtension):
    """Prepares the kernels for steps of few rows while the engine runs, which takes seconds.
    Compiles the kernels, packs the weights, checks logits, measures, and logs the result in one
    line. The engine then uses the kernels that are correct and faster.

    Args:
        cache: stores that the kernels have passed their check; None = always check them.
        has_adapters: whether adapters are served.
    """

    def __init__(
        self,
        model: PagedModel,
        cache: DiskCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        has_adapters: bool = False,
    ) -> None:
        self._model = model
        self._cache = cache or DiskCache(None)
        self._clock = clock
        self._has_adapters = has_adapters
        self._num_packed = 0

    def add_stats(self, stats: BackendStats) -> BackendStats:
        packed = self._num_packed
        return replace(stats, packed_weights_bytes=packed) if packed else stats

    def prepare(self, may_go_on: Callable[[float], bool]) -> None:
        def wait_for_rest() -> None:
            if not may_go_on(0.0):
                raise _DroppedError

        with suppress(_DroppedError):
            self._num_packed = _prepare_kernels(
                self._model, wait_for_rest, self._cache, self._clock, self._has_adapters
            )


def _prepare_kernels(
    model: PagedModel,
    wait_for_rest: Callable[[], None],
    cache: DiskCache,
    clock: Callable[[], float],
    has_adapters: bool,
) -> int:
    """Logs the result, and returns the bytes of the packed weights that are in use."""
    try:
        num_packed, result = _prepare(model, wait_for_rest, cache, clock, has_adapters=has_adapters)
        logger.info("decode kernels: %s", result)
        return num_packed
    except _DroppedError:
        raise
    except Exception as error:
        logger.warning("decode kernels: not used: %s", reason_of(error))
        return 0


def _prepare(
    model: PagedModel,
    wait_for_rest: Callable[[], None],
    cache: DiskCache,
    clock: Callable[[], float],
    *,
    has_adapters: bool,
) -> tuple[int, str]:
    """Prepares the kernels. Returns the bytes of their weights, and the result for the log: the
    largest gain, or the reason why they are not used."""
    from fastovms.engine.kernels.compiler import find_instructions
    from fastovms.parts.decode_kernels import few_rows

    instructions = find_instructions()
    if instructions is None:
        return 0, "not used: this CPU has neither AVX2 nor AVX-512 VNNI"
    variants = few_rows.choose_few_rows(
        model, instructions, before_each=wait_for_rest, has_adapters=has_adapters
    )
    if variants is None:
        return 0, "not used: the weights have other precisions, or too little memory is free"
    instructions = variants.store.kernels.instructions
    _check(model, variants, cache, wait_for_rest)
    plain = model.twin()
    chosen: dict[int, list[RunnerFactory]] = {}
    speeds: list[str] = []
    fastest = 1.0
    for name, makers in (("whole steps", variants.whole), ("products", variants.operations)):
        if not makers:
            continue
        wait_for_rest()
        ours = model.twin()
        ours.use_for_few_rows({number: [make] for number, make in makers.items()})
        gains = few_rows.gains(
            plain,
            ours,
            clock,
            before_each=wait_for_rest,
            max_seconds=_MAX_SECONDS,
            max_rounds=_NUM_ROUNDS,
        )
        if model.awaits_single_rows and gains.get(1, 0.0) < _MIN_GAIN_OF_ONE:
            gains.pop(1, None)
        for number in few_rows.served_numbers(gains):
            chosen.setdefault(number, []).append(makers[number])
        if gains:
            fastest = max(fastest, *gains.values())
            listed = ", ".join(f"{number}: {gain:.2f}" for number, gain in gains.items())
            speeds.append(f"{name} {listed}")
    if not chosen:
        return 0, f"not used: no faster than OpenVINO on this CPU ({instructions})"
    served = {make for makers in chosen.values() for make in makers}
    # OpenVINO takes still longer with adapters, so that these need no measurement of their own.
    adapted = variants.adapted if served & set(variants.whole.values()) else {}
    model.use_for_few_rows(chosen, adapted)
    model.forget_files()  # which were read once more
    logger.debug(
        "decode kernels: %s, speed relative to OpenVINO by tokens a step: %s",
        instructions,
        "; ".join(speeds),
    )
    result = f"in use, up to {fastest:.1f} times as fast as OpenVINO in steps of few tokens"
    return variants.store.num_bytes, result


def _check(
    model: PagedModel, variants: FewRowVariants, cache: DiskCache, wait_for_rest: Callable[[], None]
) -> None:
    """Checks what the kernels compute, unless they have passed that with these files before. Raises
    _WrongError if they have not passed."""
    import numba

    from fastovms.parts.decode_kernels import check as kernel_check

    weights = model.graph.weights
    key = key_of(
        [__version__, ov.get_version(), numba.__version__, kernel_check.VERSION],
        [variants.store.kernels.instructions, dict(model.precisions.large)],
        file_identity([weights.with_suffix(".xml"), weights]),
    )
    if cache.find(_CHECKED, key) is not None:
        return
    wrong = kernel_check.why_wrong(model, variants, wait_for_rest)
    find_trim()()  # of the weights that were computed with, malloc keeps a part
    if wrong is not None:
        raise _WrongError(wrong)
    cache.put(_CHECKED, key, lambda entry: (entry / "passed").touch())
