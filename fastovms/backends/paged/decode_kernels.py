"""Prepares what makes steps of few rows fast for a model that is being served, and switches over to
it: our own kernels, or OpenVINO's with fixed shapes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE
from fastovms.engine.model.devices import is_cpu
from fastovms.engine.model.model import PagedModel, RunnerFactory
from fastovms.engine.model.paging import reason_of

logger = logging.getLogger(__name__)

_DELAY: Final = 2.0
"""Seconds in which a first request may come, which is then answered undisturbed."""

_MAX_SECONDS: Final = 3.0
_NUM_ROUNDS: Final = 5
"""How long, and how often, steps of one size are measured at most."""


class _DroppedError(Exception):
    """The model is not served any more."""


class _WrongError(Exception):
    """The kernels compute something else than OpenVINO, which the message says."""


def can_use_kernels(model: PagedModel) -> bool:
    """Returns whether it is worth trying: on the CPU, with weights that do not fit its caches, and
    where a text may depend on what else is computed."""
    return (
        is_cpu(model.device)
        and not model.is_batch_invariant
        and model.states is None
        and model.graph.weights.stat().st_size > EXACT_WEIGHTS_SIZE
    )


def prepare_few_rows(
    model: PagedModel,
    has_kernels: bool,
    may_go_on: Callable[[], bool],
    clock: Callable[[], float] = time.perf_counter,
    *,
    has_adapters: bool = False,
) -> None:
    """Compiles the graph for steps of one row, if the model has one. Then compiles the kernels,
    packs the weights, checks logits and measures, and logs in one line how that ended. All of it
    runs beside the engine, which switches over to what is right and faster, and takes seconds.

    Args:
        has_kernels: whether to try the kernels.
        may_go_on: waits, before a piece of work, until the engines rest or for some seconds, and
            returns whether the model is still served.
        has_adapters: whether adapters are served.
    """

    def wait_for_rest() -> None:
        if not may_go_on():
            raise _DroppedError

    time.sleep(_DELAY)
    try:
        if model.awaits_single_rows:
            wait_for_rest()
            _compile_single_rows(model)
        if has_kernels:
            result = _prepare(model, wait_for_rest, clock, has_adapters=has_adapters)
            logger.info("decode kernels: %s", result)
    except _DroppedError:
        pass
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
        wrong = few_rows.why_wrong(plain, ours)
        if wrong is not None:
            raise _WrongError(wrong)
        gains = few_rows.gains(
            plain,
            ours,
            clock,
            before_each=wait_for_rest,
            max_seconds=_MAX_SECONDS,
            max_rounds=_NUM_ROUNDS,
        )
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
