"""Examines machine, installation and model, and writes what was found as text or JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fastovms.catalog.finder import ModelFinder
from fastovms.catalog.hub import Repository, model_root
from fastovms.config.engine_config import EngineConfig
from fastovms.config.http_config import HttpConfig, SecurityConfig
from fastovms.config.model_config import RepositoryConfig
from fastovms.config.service_config import StateConfig
from fastovms.config.settings import ModelSource, Settings
from fastovms.doctor.encoder_checks import EncoderFacts, check_encoder, read_encoder
from fastovms.doctor.finding import Finding, Level
from fastovms.doctor.installation_checks import INSTALLATION_CHECKS
from fastovms.doctor.installation_facts import read_installation
from fastovms.doctor.machine_checks import MACHINE_CHECKS
from fastovms.doctor.machine_facts import MachineFacts, read_machine
from fastovms.doctor.memory_bandwidth import measure_bandwidth
from fastovms.doctor.model_checks import MODEL_CHECKS, ModelOnMachine
from fastovms.doctor.model_facts import read_model
from fastovms.errors import ConfigurationError
from fastovms.gguf.model_directory import model_directory
from fastovms.system.disk_cache import DiskCache, cache_root

_COLOURS: Final[Mapping[Level, str]] = {
    Level.OK: "32",
    Level.NOTE: "36",
    Level.WARNING: "33",
    Level.PROBLEM: "31",
}
"""Parameters of SGR (ECMA-48, 8.3.117): green, cyan, yellow, red."""

_LEVEL_WIDTH: Final = max(map(len, Level))


@dataclass(frozen=True, slots=True)
class Examination:
    """Everything that was found. `figures` are the numbers behind it, for programs."""

    findings: tuple[Finding, ...]
    figures: Mapping[str, object]

    @property
    def has_problems(self) -> bool:
        return any(finding.level is Level.PROBLEM for finding in self.findings)


def examine(source: ModelSource, settings: Settings, *, runs: bool) -> Examination:
    """Looks at everything, and changes nothing but caches.

    Args:
        runs: whether to measure memory and model, too, for some seconds.
    """
    machine = read_machine()
    installation = read_installation(
        settings.section(EngineConfig),
        settings.section(HttpConfig),
        settings.section(SecurityConfig),
        settings.section(StateConfig),
        os.environ,
    )
    findings = [finding for check in MACHINE_CHECKS for finding in check(machine)]
    findings += [finding for check in INSTALLATION_CHECKS for finding in check(installation)]
    figures: dict[str, object] = {"machine": _plain(machine)}
    try:
        model = _examine_model(source, settings.section(RepositoryConfig), machine, runs=runs)
    except ConfigurationError as error:
        findings.append(Finding(Level.PROBLEM, "model", " ".join(str(error).split())))
    else:
        if model is None:
            text = f"{source.location} is not here: the first start pulls it from the hub"
            advice = f"fastovms pull {source.location}"
            findings.append(Finding(Level.NOTE, "model", text, advice))
        elif isinstance(model, EncoderFacts):
            findings += check_encoder(model, machine)
            figures["model"] = _plain(model)
        else:
            findings += [finding for check in MODEL_CHECKS for finding in check(model)]
            figures["model"] = _plain(model.model)
            figures["bandwidth_bytes_per_second"] = model.bandwidth
            figures["bytes_per_token"] = model.bytes_per_token
            figures["ceiling_tokens_per_second"] = model.ceiling
            figures["tokens_per_second"] = model.tokens_per_second
    return Examination(tuple(findings), figures)


def _examine_model(
    source: ModelSource, repository: RepositoryConfig, machine: MachineFacts, *, runs: bool
) -> ModelOnMachine | EncoderFacts | None:
    """Returns None: the model would have to be pulled.

    Raises:
        ConfigurationError: it is no model, or the device cannot run it.
    """
    finder = ModelFinder(Repository(model_root(repository.path, os.environ)), repository)
    if finder.needs_network(source):
        return None
    config = finder.find(source)
    cache = DiskCache(cache_root(config.engine.cache_dir, os.environ))
    with TemporaryDirectory(prefix="fastovms-") as scratch:
        directory = model_directory(config.path, cache, Path(scratch))
        encoder = read_encoder(config, directory)
        if encoder is not None:
            return encoder
        facts = read_model(config, directory, cache, runs=runs)
    bandwidth = None
    if runs:
        bandwidth = measure_bandwidth(
            machine.num_threads, machine.last_level_cache, machine.available_memory
        )
    return ModelOnMachine(facts, machine, bandwidth)


# What is written


def render(findings: Sequence[Finding], *, in_colour: bool) -> str:
    """Returns a line for each finding, with its advice below, and what it comes to."""
    lines = [line for finding in findings for line in _lines(finding, in_colour=in_colour)]
    counts = [
        f"{number} {level}{'s' if number > 1 else ''}"
        for level in (Level.PROBLEM, Level.WARNING, Level.NOTE)
        if (number := sum(finding.level is level for finding in findings))
    ]
    lines += ["", ", ".join(counts) or "all is well"]
    return "\n".join(lines)


def _lines(finding: Finding, *, in_colour: bool) -> Iterator[str]:
    level = f"{finding.level:<{_LEVEL_WIDTH}}"
    if in_colour:
        level = f"\x1b[{_COLOURS[finding.level]}m{level}\x1b[0m"
    yield f"{level}  {finding.topic}: {finding.text}"
    if finding.advice:
        yield f"{'':{_LEVEL_WIDTH}}  -> {finding.advice}"


def render_json(examination: Examination) -> str:
    """Returns the findings and figures as JSON."""
    found = {
        "has_problems": examination.has_problems,
        "findings": [asdict(finding) for finding in examination.findings],
        **examination.figures,
    }
    return json.dumps(found, indent=2)


def _plain(facts: object) -> object:
    """Returns facts as JSON has them: infinite numbers are null, sets are lists."""
    match facts:
        case float() if math.isinf(facts):
            return None
        case frozenset():
            return sorted(facts)
        case Path():
            return str(facts)
        case Mapping():
            return {key: _plain(value) for key, value in facts.items()}
    if hasattr(facts, "__dataclass_fields__"):
        return {name: _plain(getattr(facts, name)) for name in facts.__dataclass_fields__}
    return facts
