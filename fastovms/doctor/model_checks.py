"""Judges a model on a machine: what a token must read, and how near a run comes to what the memory
gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from fastovms.doctor.finding import Finding, Level
from fastovms.doctor.machine_facts import MachineFacts
from fastovms.doctor.model_facts import ModelFacts
from fastovms.engine.model.machine.devices import is_cpu
from fastovms.text.templating.template_form import OUTCOMES

MEMORY_SHARE: Final = 0.9
"""The share of the free memory beyond which weights leave too little for the rest."""

_LOW_SHARE: Final = 0.4
"""Below this share of the ceiling something else than memory holds a large model up."""


@dataclass(frozen=True, slots=True)
class ModelOnMachine:
    """What the checks judge together.

    Attributes:
        bandwidth: of memory, in bytes a second; None = it was not measured.
    """

    model: ModelFacts
    machine: MachineFacts
    bandwidth: float | None

    @property
    def bytes_per_token(self) -> float:
        """What one token reads that is decoded alone, its cache included."""
        run = self.model.run
        cache = 0.0 if run is None else run.kv_bytes_per_token * run.context
        return self.model.traffic.per_token + cache

    @property
    def ceiling(self) -> float | None:
        """Tokens a second of one sequence, as far as the memory gives the weights; None = not
        known, or none, as for weights that stay in the processor's caches."""
        is_cached = self.model.traffic.per_token <= self.machine.last_level_cache
        if self.bandwidth is None or is_cached or not is_cpu(self.model.device):
            return None
        return self.bandwidth / self.bytes_per_token

    @property
    def tokens_per_second(self) -> float | None:
        """What the run has reached."""
        run = self.model.run
        if run is None or run.seconds_per_token is None:
            return None
        return 1 / run.seconds_per_token


ModelCheck = Callable[[ModelOnMachine], Iterator[Finding]]


def check_fit(facts: ModelOnMachine) -> Iterator[Finding]:
    total, free = facts.model.traffic.total, facts.machine.available_memory
    text = f"{format_size(total)} of weights, contexts of {facts.model.max_model_len} tokens"
    if is_cpu(facts.model.device) and total > MEMORY_SHARE * free:
        yield Finding(
            Level.PROBLEM,
            "model",
            f"{facts.model.name}: {text}, but {format_size(free)} of memory are free",
            "weights in 4 bits, a smaller model, or more memory",
        )
    else:
        yield Finding(Level.OK, "model", f"{facts.model.name}: {text}")


def check_backend(facts: ModelOnMachine) -> Iterator[Finding]:
    model = facts.model
    level = Level.OK if model.backend == "paged" else Level.NOTE
    yield Finding(level, "backend", f"{model.backend}: {model.backend_reason}")


def check_tuning(facts: ModelOnMachine) -> Iterator[Finding]:
    run = facts.model.run
    if run is not None:
        yield Finding(
            Level.OK,
            "tuning",
            f"{run.way}, {run.token_budget} tokens a step: {run.way_reason}",
        )


def check_reads(facts: ModelOnMachine) -> Iterator[Finding]:
    traffic, run = facts.model.traffic, facts.model.run
    text = f"a token reads {format_size(traffic.per_token)} of weights"
    if traffic.experts:
        share = traffic.active_share
        known = f"{share:.0%} of its experts'" if share < 1 else "all experts', of which"
        text += f" ({known} {format_size(traffic.experts)})"
    if run is not None:
        text += f", and {format_size(run.kv_bytes_per_token)} of the cache for each token before it"
    yield Finding(Level.OK, "reads", text)


def check_bandwidth(facts: ModelOnMachine) -> Iterator[Finding]:
    if facts.bandwidth is None:
        return
    threads = facts.machine.num_threads
    text = f"{threads} threads read {facts.bandwidth / 1e9:.1f} GB/s of memory"
    if facts.ceiling is not None:
        text += f": at most {_rate(facts.ceiling)} tokens a second for one sequence"
    elif is_cpu(facts.model.device):
        text += "; the weights stay in the processor's cache, so that memory sets no bound"
    yield Finding(Level.OK, "bandwidth", text)


def check_run(facts: ModelOnMachine) -> Iterator[Finding]:
    speed = facts.tokens_per_second
    if speed is None:
        if facts.model.run is not None and facts.bandwidth is not None:
            yield Finding(
                Level.NOTE, "run", "it was too slow for a figure", "ask again when less runs here"
            )
        return
    text = f"{_rate(speed)} tokens a second of one sequence in a short run, without drafts"
    if facts.ceiling is None:
        yield Finding(Level.OK, "run", text)
        return
    share = speed / facts.ceiling
    text += f": {share:.0%} of what the memory gives"
    if share < _LOW_SHARE:
        yield Finding(
            Level.NOTE,
            "run",
            text,
            "end what else runs here and ask again; fastovms tune MODEL measures other ways to "
            "run it",
        )
    else:
        yield Finding(Level.OK, "run", text)


def check_histories(facts: ModelOnMachine) -> Iterator[Finding]:
    for history, outcome in facts.model.histories.items():
        level = Level.OK if outcome in OUTCOMES else Level.WARNING
        yield Finding(level, "chat template", f"{history}: {outcome}")


MODEL_CHECKS: Final[tuple[ModelCheck, ...]] = (
    check_fit,
    check_backend,
    check_tuning,
    check_reads,
    check_bandwidth,
    check_run,
    check_histories,
)


def _rate(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def format_size(number: float) -> str:
    """Returns a number of bytes for people."""
    for unit in ("B", "KB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"
