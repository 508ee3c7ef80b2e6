"""`fastovms doctor`: checks the machine, the installation and a model."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum, StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import openvino as ov

from fastovms.backends.model_task import find_task, graph_files
from fastovms.config import EngineConfig, HttpConfig
from fastovms.engine.model.devices import (
    AUTO,
    GIB,
    MAX_MEMORY_SHARE,
    DeviceFacts,
    choose_device,
    format_size,
    is_cpu,
    read_devices,
)
from fastovms.errors import ConfigurationError
from fastovms.gguf.model_directory import model_directory
from fastovms.params import Task
from fastovms.parts.doctor.facts import (
    InstallationFacts,
    MachineFacts,
    ModelFacts,
    device_of,
    measure_bandwidth,
    read_installation,
    read_machine,
    read_model,
)
from fastovms.parts.embeddings.pooling import find_pooling
from fastovms.parts.embeddings.served import read_info
from fastovms.parts.images import served as images
from fastovms.parts.speech import served as speech
from fastovms.parts.speech_out import served as speech_out
from fastovms.server_config import ModelConfig, ModelSource, SecurityConfig, Settings, StateConfig
from fastovms.system.disk import DiskCache, cache_root
from fastovms.text.template_forms import OUTCOMES


class Level(StrEnum):
    """The severity of a finding. Only a PROBLEM prevents the server from running as configured."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the examination.

    Attributes:
        topic: the examined subject, such as "cores".
        text: one sentence without a full stop.
        advice: the remedy; "" = no action is needed.
    """

    level: Level
    topic: str
    text: str
    advice: str = ""


MachineCheck = Callable[[MachineFacts], Iterator[Finding]]

_INSTRUCTION_SETS: Final = {
    "AVX2": "avx2",
    "AVX-512": "avx512f",
    "AVX-VNNI": "avx_vnni",
    "AVX-512 VNNI": "avx512_vnni",
    "AVX-512 BF16": "avx512_bf16",
    "AMX BF16": "amx_bf16",
    "AMX INT8": "amx_int8",
}
"""The instruction sets that OpenVINO uses for matrix products, with their flags in
/proc/cpuinfo."""

_LITTLE_MEMORY: Final = GIB


def check_instruction_sets(facts: MachineFacts) -> Iterator[Finding]:
    """Reports the processor's vector instruction sets; a warning if AVX2 is missing."""
    found = [name for name, flag in _INSTRUCTION_SETS.items() if flag in facts.flags]
    text = f"{facts.model}: {', '.join(found) or 'none of AVX2, AVX-512, VNNI and AMX'}"
    if "AVX2" not in found:
        yield Finding(
            Level.WARNING, "processor", text, "any Intel processor since 2013 is many times faster"
        )
    elif not any("VNNI" in name or "AMX" in name for name in found):
        yield Finding(
            Level.NOTE,
            "processor",
            f"{text}; without VNNI, weights of 8 and 4 bits save memory, and prompts are computed "
            "no faster for them",
        )
    else:
        yield Finding(Level.OK, "processor", text)


def check_cores(facts: MachineFacts) -> Iterator[Finding]:
    """Reports the number of cores, and how many threads the engine uses."""
    kinds = ", ".join(f"{number} {kind}" for kind, number in facts.kinds.items())
    text = f"{facts.num_cpus} logical processors{f' ({kinds})' if kinds else ''}"
    if facts.threads_per_core > 1:
        text += f", {facts.threads_per_core} to a core"
    yield Finding(Level.OK, "cores", f"{text}; the engine computes with {_threads(facts)}")
    if len(facts.kinds) > 1:
        yield Finding(
            Level.NOTE,
            "cores",
            "cores of several kinds share each step, which ends with the slowest",
            'compare with --plugin-config \'{"SCHEDULING_CORE_TYPE": "PCORE_ONLY"}\' by fastovms '
            "bench",
        )


def check_limits(facts: MachineFacts) -> Iterator[Finding]:
    """Reports limits on the CPUs and the CPU time of this process."""
    if facts.num_allowed < facts.num_cpus:
        yield Finding(
            Level.NOTE,
            "limits",
            f"this process may run on {facts.num_allowed} of {facts.num_cpus} processors",
        )
    if math.isinf(facts.quota):
        return
    text = f"the control group allows {facts.quota:g} processors' time"
    if facts.quota != int(facts.quota):
        yield Finding(
            Level.WARNING,
            "limits",
            f"{text}, of which {_threads(facts)} use up the last part early and then stall",
            "a limit of whole processors",
        )
    elif facts.quota < facts.num_allowed:
        yield Finding(Level.NOTE, "limits", f"{text}; {_threads(facts)} compute, no more")
    else:
        yield Finding(Level.OK, "limits", text)


def check_memory(facts: MachineFacts) -> Iterator[Finding]:
    """Reports the memory that is free for weights and KV cache."""
    text = f"{format_size(facts.available_memory)} are free for weights and cache"
    if facts.memory_limit_left <= facts.available_memory:
        text += ", as far as this process's limits go"
    if facts.available_memory < _LITTLE_MEMORY:
        yield Finding(
            Level.WARNING, "memory", text, "end what else takes memory, or raise the limit"
        )
    else:
        yield Finding(Level.OK, "memory", text)


def check_load(facts: MachineFacts) -> Iterator[Finding]:
    """Reports whether other processes use the CPU now, which would distort measurements."""
    if facts.load > facts.num_cpus:
        yield Finding(
            Level.NOTE,
            "load",
            f"{facts.load:.1f} tasks want {facts.num_cpus} processors at the moment: what is "
            "measured now is less than what can be had",
            "end what else runs here",
        )
    else:
        yield Finding(Level.OK, "load", f"{facts.load:.1f} tasks run at the moment")


def check_governor(facts: MachineFacts) -> Iterator[Finding]:
    """Reports a CPU frequency governor that may keep the processor slow."""
    slow = [name for name in facts.governors if name not in ("performance", "schedutil")]
    if slow:
        yield Finding(
            Level.WARNING,
            "governor",
            f"frequencies are governed by {', '.join(slow)}, which may keep them low",
            "cpupower frequency-set -g performance",
        )
    elif facts.governors:
        yield Finding(Level.OK, "governor", f"{', '.join(facts.governors)}")
    else:
        yield Finding(Level.OK, "governor", "none to be seen here; the host has it, if any")


def check_numa(facts: MachineFacts) -> Iterator[Finding]:
    """Reports memory that is split across several NUMA nodes."""
    if facts.num_numa_nodes > 1:
        yield Finding(
            Level.NOTE,
            "NUMA",
            f"memory lies in {facts.num_numa_nodes} nodes, and weights of one node are slow to "
            "read from another",
            "compare one server a node (numactl --cpunodebind=0 --membind=0, in a unit NUMAPolicy "
            "and NUMAMask) with one for all",
        )
    else:
        yield Finding(Level.OK, "NUMA", "all memory is in one node")


MACHINE_CHECKS: Final[tuple[MachineCheck, ...]] = (
    check_instruction_sets,
    check_cores,
    check_limits,
    check_memory,
    check_load,
    check_governor,
    check_numa,
)


def check_devices(devices: Sequence[DeviceFacts], engine: EngineConfig) -> Iterator[Finding]:
    """Reports the devices that OpenVINO finds, and the device that a server would use."""
    for device in devices:
        if device.fault:
            yield Finding(Level.WARNING, "device", f"{device.name}: {device.fault}", "its driver")
            continue
        parts = [device.full_name or "unnamed", device.kind.value]
        if device.memory:
            parts.append(format_size(device.memory))
        if device.driver:
            parts.append(f"driver {device.driver}")
        yield Finding(Level.OK, "device", f"{device.name}: {', '.join(parts)}")
    if engine.device.upper() == AUTO:
        choice = choose_device(devices, engine.why_cpu)
        text = f"AUTO chooses {choice.name}: {choice.reason}"
        yield Finding(Level.OK, "device", text)


def _threads(facts: MachineFacts) -> str:
    return "1 thread" if facts.num_threads == 1 else f"{facts.num_threads} threads"


InstallationCheck = Callable[[InstallationFacts], Iterator[Finding]]

_LITTLE_SPACE: Final = GIB
_OTHERS: Final = stat.S_IRWXO


def check_directories(facts: InstallationFacts) -> Iterator[Finding]:
    """Reports whether the server's directories exist and are writable."""
    for directory in facts.directories:
        topic = f"{directory.name} directory"
        if directory.path is None:
            yield Finding(
                Level.NOTE,
                topic,
                "there is none: every start compiles and measures again",
                directory.flag,
            )
            continue
        there = f"{directory.path}"
        if not directory.is_writable:
            yield Finding(
                Level.PROBLEM,
                topic,
                f"{there} cannot be written by this user",
                f"another {directory.flag}, or its permissions",
            )
            continue
        state = "is there" if directory.exists else "is made at the first start"
        text = f"{there} {state}, with {format_size(directory.free)} free"
        if directory.free < _LITTLE_SPACE:
            yield Finding(Level.WARNING, topic, text, f"make room, or another {directory.flag}")
        else:
            yield Finding(Level.OK, topic, text)


def check_database(facts: InstallationFacts) -> Iterator[Finding]:
    """Reports whether the database of --state-url can be used, if one is configured."""
    database = facts.database
    if database is None:
        return
    if database.fault is None:
        yield Finding(Level.OK, "state database", f"{database.address} answers")
    else:
        yield Finding(
            Level.PROBLEM,
            "state database",
            f"{database.address}: {database.fault}",
            "--state-url, its password and its network",
        )


def check_secrets(facts: InstallationFacts) -> Iterator[Finding]:
    """Reports files with secrets that are missing, unreadable, or readable by other users."""
    for secret in facts.secrets:
        if secret.mode is None:
            yield Finding(
                Level.PROBLEM, secret.name, f"there is no {secret.path} that this user can see"
            )
        elif not secret.is_readable:
            yield Finding(
                Level.PROBLEM,
                secret.name,
                f"{secret.path} cannot be read by this user",
                "its owner, or its permissions",
            )
        elif secret.mode & _OTHERS:
            yield Finding(
                Level.WARNING,
                secret.name,
                f"{secret.path} can be read or changed by every user of the machine "
                f"({secret.mode:o})",
                f"chmod o= {secret.path}",
            )
        else:
            yield Finding(Level.OK, secret.name, f"{secret.path} ({secret.mode:o})")


def check_addresses(facts: InstallationFacts) -> Iterator[Finding]:
    """Reports whether the server can listen on the configured addresses."""
    for place in facts.addresses:
        if place.fault is None:
            yield Finding(Level.OK, "address", f"{place.address} is free")
        else:
            yield Finding(
                Level.WARNING,
                "address",
                f"{place.address} cannot be listened on now: {place.fault}",
                "--port or --host, unless it is this very server that runs there",
            )


INSTALLATION_CHECKS: Final[tuple[InstallationCheck, ...]] = (
    check_directories,
    check_database,
    check_secrets,
    check_addresses,
)


_LOW_SHARE: Final = 0.4
"""The fraction of the ceiling below which something other than memory bandwidth limits the speed of
a large model."""


@dataclass(frozen=True, slots=True)
class ModelOnMachine:
    """A model and its machine, for checks that need facts of both.

    Attributes:
        bandwidth: memory bandwidth in bytes per second; None = not measured.
    """

    model: ModelFacts
    machine: MachineFacts
    bandwidth: float | None

    @property
    def bytes_per_token(self) -> float:
        """The bytes of weights and KV cache that decoding one token reads."""
        run = self.model.run
        cache = 0.0 if run is None else run.kv_bytes_per_token * run.context
        return self.model.traffic.per_token + cache

    @property
    def ceiling(self) -> float | None:
        """The upper limit of tokens per second of one sequence that memory bandwidth allows; None =
        unknown, or not limited because the weights fit into the CPU caches."""
        is_cached = self.model.traffic.per_token <= self.machine.last_level_cache
        if self.bandwidth is None or is_cached or not is_cpu(self.model.device):
            return None
        return self.bandwidth / self.bytes_per_token

    @property
    def tokens_per_second(self) -> float | None:
        """The tokens per second of the test run; None = not measured."""
        run = self.model.run
        if run is None or run.seconds_per_token is None:
            return None
        return 1 / run.seconds_per_token


ModelCheck = Callable[[ModelOnMachine], Iterator[Finding]]


def check_fit(facts: ModelOnMachine) -> Iterator[Finding]:
    """Reports whether the model's weights fit into the free memory."""
    total, free = facts.model.traffic.total, facts.machine.available_memory
    text = f"{format_size(total)} of weights, contexts of {facts.model.max_model_len} tokens"
    if is_cpu(facts.model.device) and total > MAX_MEMORY_SHARE * free:
        yield Finding(
            Level.PROBLEM,
            "model",
            f"{facts.model.name}: {text}, but {format_size(free)} of memory are free",
            "weights in 4 bits, a smaller model, or more memory",
        )
    else:
        yield Finding(Level.OK, "model", f"{facts.model.name}: {text}")


_PROGRAM: Final = 500_000_000
"""The approximate bytes of the program, its libraries and the activations."""


def check_needs(facts: ModelOnMachine) -> Iterator[Finding]:
    """Reports the memory that each part of a server with this model needs if one stream uses the
    whole context, and the sum."""
    model, run = facts.model, facts.model.run
    if run is None:
        return
    one = run.kv_bytes_per_token * model.max_model_len
    text = f"{format_size(run.kv_bytes_per_token)} a token: {format_size(one)} for one context of "
    text += f"{model.max_model_len} tokens, and at most {format_size(run.cache_limit)} for all"
    yield Finding(Level.OK, "KV cache", f"{text}, with the prefix cache")
    parts = [(model.traffic.total, "weights"), (one, "KV cache"), (_PROGRAM, "the rest")]
    if run.packed_weights:
        text = (
            f"{format_size(run.packed_weights)} for the decode kernels, which count as file cache"
        )
        yield Finding(Level.OK, "packed weights", text)
        parts.insert(1, (run.packed_weights, "packed weights"))
    total = format_size(sum(size for size, _ in parts))
    listed = ", ".join(f"{format_size(size)} {name}" for size, name in parts)
    text = f"{total} for one stream: {listed}"
    if run.packed_weights:
        once = sum(size for size, name in parts if name != "weights")
        text += f". With --memory-profile once: {format_size(once)}, and slower prompts"
    if run.packed_weights is None:
        text += ". Packed weights for the decode kernels, about as large as the weights, are added "
        text += "if that much memory is free"
    yield Finding(Level.OK, "needs", text)


def check_backend(facts: ModelOnMachine) -> Iterator[Finding]:
    """Reports the model's backend, and why it was chosen."""
    model = facts.model
    level = Level.OK if model.backend == "paged" else Level.NOTE
    yield Finding(level, "backend", f"{model.backend}: {model.backend_reason}")


def check_tuning(facts: ModelOnMachine) -> Iterator[Finding]:
    """Reports the precisions that the model's steps are computed with, and why."""
    run = facts.model.run
    if run is not None:
        yield Finding(
            Level.OK,
            "tuning",
            f"{run.way}, {run.token_budget} tokens a step: {run.way_reason}",
        )


def check_kernels(facts: ModelOnMachine) -> Iterator[Finding]:
    """Reports whether the model uses the decode kernels."""
    run = facts.model.run
    if run is not None and run.decode_kernels:
        yield Finding(Level.OK, "decode kernels", run.decode_kernels)


def check_reads(facts: ModelOnMachine) -> Iterator[Finding]:
    """Reports the bytes of weights and of KV cache that decoding one token reads."""
    traffic, run = facts.model.traffic, facts.model.run
    text = f"a token reads {format_size(traffic.per_token)} of weights"
    if traffic.experts:
        share = traffic.active_share
        known = f"{share:.0%} of its experts'" if share < 1 else "all experts', of which"
        text += f" ({known} {format_size(traffic.experts)})"
    if run is not None:
        text += f", and {format_size(run.kv_bytes_per_token)} of the cache for each token before it"
    if traffic.active_share < 1:
        always = traffic.total - traffic.looked_up - traffic.experts
        text += f". Memory must hold {format_size(always)} and the experts that are often chosen: "
        text += "others are read from disk"
    yield Finding(Level.OK, "reads", text)


def check_bandwidth(facts: ModelOnMachine) -> Iterator[Finding]:
    """Reports the measured memory bandwidth, and the tokens per second that it allows."""
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
    """Reports the tokens per second of the test run."""
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
    """Reports how the chat template renders several kinds of message histories."""
    for history, outcome in facts.model.histories.items():
        level = Level.OK if outcome in OUTCOMES else Level.WARNING
        yield Finding(level, "chat template", f"{history}: {outcome}")


MODEL_CHECKS: Final[tuple[ModelCheck, ...]] = (
    check_fit,
    check_needs,
    check_backend,
    check_tuning,
    check_kernels,
    check_reads,
    check_bandwidth,
    check_run,
    check_histories,
)


def _rate(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


@dataclass(frozen=True, slots=True)
class EncoderFacts:
    """Facts about an embedding, rerank, speech or image model, from its files and the flags.

    Attributes:
        task: the task's name, as in OVMS.
        pooling: how token states are pooled to a vector; None = not an embedding model.
        max_model_len: the longest text in tokens.
        weights_size: the bytes of the weights.
        device: OpenVINO's name of the device.
    """

    name: str
    path: Path
    task: str
    pooling: str | None
    max_model_len: int
    weights_size: int
    device: str


_READERS: Final = {
    Task.SPEECH: speech.read_info,
    Task.SPEECH_OUT: speech_out.read_info,
    Task.IMAGES: images.read_info,
}


def read_encoder(model: ModelConfig, directory: Path) -> EncoderFacts | None:
    """Reads the files of a model that does not generate text; returns None for one that does.
    Raises ConfigurationError if a file is missing or broken, or the model does not support its
    task.

    Args:
        directory: the directory of the model.
    """
    task = find_task(directory, model.encoder.task)
    if task is Task.TEXT_GENERATION:
        return None
    info = _READERS.get(task, read_info)(directory, name=model.name)
    pooling = None
    if task is Task.EMBEDDINGS:
        pooling = find_pooling(directory, model.encoder.pooling, info.config).value
    return EncoderFacts(
        name=model.name,
        path=model.path,
        task=task.value,
        pooling=pooling,
        max_model_len=info.max_model_len,
        weights_size=sum(
            path.with_suffix(".bin").stat().st_size for path in graph_files(directory)
        ),
        device=device_of(model.engine),
    )


def check_encoder(encoder: EncoderFacts, machine: MachineFacts) -> Iterator[Finding]:
    """Reports the task of the model, and whether its weights fit into the free memory."""
    text = f"{encoder.name}: {format_size(encoder.weights_size)} of weights, "
    text += f"texts of {encoder.max_model_len} tokens"
    free = machine.available_memory
    if is_cpu(encoder.device) and encoder.weights_size > MAX_MEMORY_SHARE * free:
        yield Finding(
            Level.PROBLEM,
            "model",
            f"{text}, but {format_size(free)} of memory are free",
            "weights in 8 bits, a smaller model, or more memory",
        )
    else:
        yield Finding(Level.OK, "model", text)
    pooling = f" with {encoder.pooling} pooling" if encoder.pooling is not None else ""
    yield Finding(Level.OK, "task", f"{encoder.task}{pooling}; the model was not run")


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
    """The results of all checks. `figures` has the facts behind the findings by name, for JSON
    output."""

    findings: tuple[Finding, ...]
    figures: Mapping[str, object]

    @property
    def has_problems(self) -> bool:
        """Whether any finding is a problem."""
        return any(finding.level is Level.PROBLEM for finding in self.findings)


def examine(
    source: ModelSource,
    settings: Settings,
    find: Callable[[ModelSource], ModelConfig | None],
    *,
    runs: bool,
) -> Examination:
    """Examines the machine, the installation and the model. Changes nothing except caches.

    Args:
        find: returns the model; None = the model would have to be downloaded.
        runs: whether to also measure memory bandwidth and run the model, for some seconds.
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
    devices = read_devices(ov.Core())
    findings += check_devices(devices, source.settings.section(EngineConfig))
    findings += [finding for check in INSTALLATION_CHECKS for finding in check(installation)]
    figures: dict[str, object] = {
        "machine": _plain(machine),
        "devices": [_plain(device) for device in devices],
    }
    try:
        config = find(source)
        model = None if config is None else _examine_model(config, machine, runs=runs)
    except ConfigurationError as error:
        findings.append(Finding(Level.PROBLEM, "model", " ".join(str(error).split())))
    else:
        if model is None:
            text = f"{source.location} is not here: the first start downloads it from the hub"
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
    config: ModelConfig, machine: MachineFacts, *, runs: bool
) -> ModelOnMachine | EncoderFacts:
    """Returns the facts about the model. Raises ConfigurationError if the path is not a model, or
    the device cannot run the model."""
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


def render(findings: Sequence[Finding], *, in_colour: bool) -> str:
    """Returns the report as text: a line per finding with its advice below, and a summary."""
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
    """Returns the findings and figures as a JSON text."""
    found = {
        "has_problems": examination.has_problems,
        "findings": [asdict(finding) for finding in examination.findings],
        **examination.figures,
    }
    return json.dumps(found, indent=2)


def _plain(facts: object) -> object:
    """Converts facts to JSON values: infinite numbers become null, sets become lists."""
    match facts:
        case float() if math.isinf(facts):
            return None
        case frozenset():
            return sorted(facts)
        case Path():
            return str(facts)
        case Enum():
            return facts.value
        case Mapping():
            return {key: _plain(value) for key, value in facts.items()}
    if hasattr(facts, "__dataclass_fields__"):
        return {name: _plain(getattr(facts, name)) for name in facts.__dataclass_fields__}
    return facts
