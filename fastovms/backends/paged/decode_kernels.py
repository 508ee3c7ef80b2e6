"""Prepares what makes a model faster that is being served already: the kernels of sampling, and for
steps of few rows our own kernels or OpenVINO's with fixed shapes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import openvino as ov

from fastovms import __version__
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE
from fastovms.engine.model.devices import is_cpu
from fastovms.engine.model.model import PagedModel, RunnerFactory
from fastovms.engine.model.paging import reason_of
from fastovms.engine.row_functions import (
    forget_compiler,
    try_to_load_kernels,
    use_numpy_for_now,
)
from fastovms.engine.suffix_index import SUFFIX_FUNCTIONS
from fastovms.system.disk import DiskCache, file_identity, key_of
from fastovms.system.memory import find_trim

if TYPE_CHECKING:
    from fastovms.engine.model.few_rows import FewRowVariants

logger = logging.getLogger(__name__)

_DELAY: Final = 2.0
"""Seconds in which a first request may come, which is then answered undisturbed."""

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


def can_use_kernels(model: PagedModel) -> bool:
    """Returns whether it is worth trying: on the CPU, with weights that do not fit its caches, and
    where a text may depend on what else is computed."""
    return (
        is_cpu(model.device)
        and not model.is_batch_invariant
        and model.states is None
        and model.graph.weights.stat().st_size > EXACT_WEIGHTS_SIZE
    )


def defer_kernels() -> None:
    """Does without the kernels of sampling until `prepare` loads them."""
    use_numpy_for_now()
    SUFFIX_FUNCTIONS.defer()


def prepare(
    model: PagedModel,
    cache: DiskCache,
    has_kernels: bool,
    has_adapters: bool,
    may_go_on: Callable[[float], bool],
) -> None:
    """Loads the kernels of sampling, which are compiled at the very first start, and prepares steps
    of few rows; see `prepare_few_rows`. A first request comes before all of it. `may_go_on` is as
    in `BackendParts.prepare`."""
    if not may_go_on(_DELAY):
        return
    try_to_load_kernels()
    SUFFIX_FUNCTIONS.try_to_load()
    if has_kernels or model.awaits_single_rows:
        may_go_on_now = partial(may_go_on, 0.0)
        prepare_few_rows(model, has_kernels, may_go_on_now, cache, has_adapters=has_adapters)
    forget_compiler()
    find_trim()()


def prepare_few_rows(
    model: PagedModel,
    has_kernels: bool,
    may_go_on: Callable[[], bool],
    cache: DiskCache | None = None,
    clock: Callable[[], float] = time.perf_counter,
    *,
    has_adapters: bool = False,
) -> None:
    """Compiles the kernels, packs the weights, checks logits and measures, and logs in one line how
    that ended. Compiles the graph for steps of one row, if the model has one, unless the kernels
    compute these steps: it would take the memory of the weights for nothing. All of it runs beside
    the engine and takes seconds. The engine then uses what is right and faster.

    Args:
        has_kernels: whether to try the kernels.
        may_go_on: waits, before a piece of work, until the engines rest or for some seconds, and
            returns whether the model is still served.
        cache: keeps that the kernels have passed their check; None = they are checked each time.
        has_adapters: whether adapters are served.
    """

    def wait_for_rest() -> None:
        if not may_go_on():
            raise _DroppedError

    try:
        if has_kernels:
            _prepare_kernels(model, wait_for_rest, cache or DiskCache(None), clock, has_adapters)
        if model.awaits_single_rows:
            wait_for_rest()
            _compile_single_rows(model)
    except _DroppedError:
        pass


def _prepare_kernels(
    model: PagedModel,
    wait_for_rest: Callable[[], None],
    cache: DiskCache,
    clock: Callable[[], float],
    has_adapters: bool,
) -> None:
    try:
        result = _prepare(model, wait_for_rest, cache, clock, has_adapters=has_adapters)
        logger.info("decode kernels: %s", result)
    except _DroppedError:
        raise
    except Exception as error:
        logger.warning("decode kernels: not used: %s", reason_of(error))


def _compile_single_rows(model: PagedModel) -> None:
    try:
        model.compile_single_rows()
    except RuntimeError as error:
        logger.warning("no separate graph is compiled for steps of one token: %s", reason_of(error))
    model.forget_files()


def _prepare(
    model: PagedModel,
    wait_for_rest: Callable[[], None],
    cache: DiskCache,
    clock: Callable[[], float],
    *,
    has_adapters: bool,
) -> str:
    """Prepares the kernels, and returns the result for the log: the largest gain, or the reason why
    they are not used."""
    from fastovms.engine.kernels.compiler import find_instructions
    from fastovms.engine.model import few_rows

    instructions = find_instructions()
    if instructions is None:
        return "not used: this CPU has neither AVX2 nor AVX-512 VNNI"
    variants = few_rows.choose_few_rows(
        model, instructions, before_each=wait_for_rest, has_adapters=has_adapters
    )
    if variants is None:
        return "not used: the weights have other precisions, or too little memory is free"
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
        return f"not used: no faster than OpenVINO on this CPU ({instructions})"
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
    return f"in use, up to {fastest:.1f} times as fast as OpenVINO in steps of few tokens"


def _check(
    model: PagedModel, variants: FewRowVariants, cache: DiskCache, wait_for_rest: Callable[[], None]
) -> None:
    """Checks what the kernels compute, unless they have passed that with these files before.

    Raises:
        _WrongError: they have not passed.
    """
    import numba

    from fastovms.engine.model import kernel_check

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
