"""Reads facts about the machine, the installation and a model."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import openvino as ov

from fastovms.api.rendering import load_chat
from fastovms.backend_stats import BackendStats
from fastovms.backends.model_files import read_model_info
from fastovms.backends.model_task import graph_file, takes_images
from fastovms.config import EngineConfig, HttpConfig
from fastovms.engine.model.compilation import EXACT_WEIGHTS_SIZE, ExportedModel, why_no_kernels
from fastovms.engine.model.devices import (
    AUTO,
    MemoryReader,
    available_memory,
    choose_device,
    num_cache_blocks,
    read_devices,
)
from fastovms.errors import FastovmsError, UnsupportedModel
from fastovms.http.listeners import TcpAddress, parse_address
from fastovms.parts.decode_kernels.prepare import DecodeKernels
from fastovms.parts.tuning import measurement as tuning
from fastovms.parts.tuning.idle import find_kept, read_files
from fastovms.server_config import ModelConfig, SecurityConfig, StateConfig
from fastovms.state.sqlite.database import IN_MEMORY
from fastovms.system.disk import DiskCache, cache_root, nearest_existing, state_directory
from fastovms.system.memory import cpu_quota, memory_left, num_usable_cpus

_KIND_FILES: Final = {
    "performance": "sys/devices/cpu_core/cpus",
    "efficiency": "sys/devices/cpu_atom/cpus",
    "low-power efficiency": "sys/devices/cpu_lowpower/cpus",
}
"""The kernel's files that list the cores of each kind on hybrid Intel processors."""

_SIZE: Final = re.compile(r"(\d+)([KMG]?)")
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about processors and memory. Sizes are in bytes.

    Attributes:
        flags: the processor's flags in /proc/cpuinfo.
        num_cpus: the number of logical processors that are online.
        num_allowed: the number of logical processors on which this process may run.
        num_threads: the number of threads of the engine.
        quota: the number of CPUs that the control groups allow; infinite = no limit.
        threads_per_core: the logical processors per core; 0 = unknown.
        kinds: logical processors by kind of core; empty = all cores are of one kind.
        governors: logical processors by frequency governor; empty = not visible, as in most virtual
            machines.
        num_numa_nodes: the number of NUMA nodes with memory.
        last_level_cache: the size of one processor's last-level cache; 0 = unknown.
        available_memory: the memory that this process may still allocate.
        memory_limit_left: the memory left by control groups and resource limits; infinite = no
            limit.
        load: the load average over the last minute, in running or waiting tasks.
    """

    model: str
    flags: frozenset[str]
    num_cpus: int
    num_allowed: int
    num_threads: int
    quota: float
    threads_per_core: int
    kinds: Mapping[str, int]
    governors: Mapping[str, int]
    num_numa_nodes: int
    last_level_cache: int
    available_memory: int
    memory_limit_left: float
    load: float


def read_machine(root: Path = Path("/")) -> MachineFacts:
    """Reads the facts from the kernel's files; `root` is prepended to their paths."""
    cpuinfo = _text(root / "proc/cpuinfo")
    cpus = root / "sys/devices/system/cpu"
    governors = [_text(file) for file in cpus.glob("cpufreq/policy*/scaling_governor")]
    kinds = {kind: len(_numbers(_text(root / file))) for kind, file in _KIND_FILES.items()}
    return MachineFacts(
        model=_field(cpuinfo, "model name") or "an unknown processor",
        flags=frozenset(_field(cpuinfo, "flags").split()),
        num_cpus=len(_numbers(_text(cpus / "online"))) or os.cpu_count() or 1,
        num_allowed=len(os.sched_getaffinity(0)),
        num_threads=num_usable_cpus(root),
        quota=cpu_quota(root),
        threads_per_core=len(_numbers(_text(cpus / "cpu0/topology/thread_siblings_list"))),
        kinds={kind: number for kind, number in kinds.items() if number},
        governors=dict(Counter(filter(None, governors))),
        num_numa_nodes=len(_numbers(_text(root / "sys/devices/system/node/has_memory"))) or 1,
        last_level_cache=max(map(_size, cpus.glob("cpu0/cache/index*/size")), default=0),
        available_memory=available_memory(root),
        memory_limit_left=memory_left(root),
        load=float((_text(root / "proc/loadavg").split() or ["0"])[0]),
    )


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # this kernel does not have the file
        return ""


def _field(cpuinfo: str, name: str) -> str:
    """Returns a field of the first processor in /proc/cpuinfo; "" = the field is missing."""
    found = re.search(rf"^{name}\s*: (.*)$", cpuinfo, re.MULTILINE)
    return found[1] if found else ""


def _numbers(text: str) -> set[int]:
    """Parses the kernel's list format for numbers, such as "0-3,8"."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _size(file: Path) -> int:
    found = _SIZE.fullmatch(_text(file))
    return int(found[1]) * _UNITS[found[2]] if found else 0


def device_of(engine: EngineConfig) -> str:
    """Returns the device that a model runs on; resolves AUTO."""
    if engine.device.upper() != AUTO:
        return engine.device
    return choose_device(read_devices(ov.Core()), engine.why_cpu).name


_MIN_SIZE: Final = 256 * 1024 * 1024
_CACHES: Final = 4
"""The minimum size of the memory that is read, as a multiple of the last-level cache."""


def measure_bandwidth(
    num_threads: int, last_level_cache: int, available: int, *, max_seconds: float = 1.5
) -> float:
    """Returns the memory bandwidth of all threads together in bytes per second: the median of
    passes.

    Args:
        last_level_cache, available: sizes in bytes; at most a quarter of `available` is used.
    """
    size = min(max(_MIN_SIZE, _CACHES * last_level_cache), available // 4)
    with MemoryReader(size, num_threads) as read:
        read()  # the first pass makes the threads
        end = time.perf_counter() + max_seconds
        rates = [read()]
        while time.perf_counter() < end:
            rates.append(read())
    return statistics.median(rates)


_CONNECT_TIMEOUT: Final = "3"
"""Timeout in seconds for connecting to the database."""


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """A directory that the server writes to.

    Attributes:
        path: None = not configured.
        exists: whether the directory exists; the server creates a missing one.
        is_writable: whether the directory, or its nearest existing parent, is writable.
        free: free bytes.
    """

    name: str
    path: Path | None
    flag: str
    exists: bool = False
    is_writable: bool = False
    free: int = 0


@dataclass(frozen=True, slots=True)
class SecretFacts:
    """A file that other users must not read.

    Attributes:
        mode: the file's permissions; None = the file does not exist or cannot be examined.
        is_readable: whether this process can read the file.
    """

    name: str
    path: Path
    mode: int | None
    is_readable: bool


@dataclass(frozen=True, slots=True)
class AddressFacts:
    """An address to listen on. `fault` is the reason why the address is not available; None =
    available."""

    address: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """The database of --state-url. `fault` is the reason why it cannot be used; None = usable."""

    address: str
    fault: str | None


@dataclass(frozen=True, slots=True)
class InstallationFacts:
    """Facts about the installation. `database` is None if the state is in a directory."""

    directories: tuple[DirectoryFacts, ...]
    secrets: tuple[SecretFacts, ...]
    addresses: tuple[AddressFacts, ...]
    database: DatabaseFacts | None = None


def read_installation(
    engine: EngineConfig,
    http: HttpConfig,
    security: SecurityConfig,
    state: StateConfig,
    environ: Mapping[str, str],
) -> InstallationFacts:
    """Reads all facts about the installation. Changes nothing."""
    directories = [_directory("cache", cache_root(engine.cache_dir, environ), "--cache-dir")]
    if state.enable_store and state.state_dir != IN_MEMORY:
        directory = Path(state.state_dir or state_directory(environ))
        directories.append(_directory("state", directory, "--state-dir"))
    secrets = {
        "API keys": security.api_key_file,
        "TLS key": http.tls_key or http.tls_certificate,
        "password of the state": state.password_file,
    }
    return InstallationFacts(
        tuple(directories),
        tuple(_secret(name, Path(path)) for name, path in secrets.items() if path is not None),
        tuple(map(_address, _addresses(http))),
        _database(state, environ) if state.enable_store else None,
    )


def _directory(name: str, path: Path | None, flag: str) -> DirectoryFacts:
    if path is None:
        return DirectoryFacts(name, None, flag)
    there = nearest_existing(path)
    is_directory = os.path.isdir(there)
    return DirectoryFacts(
        name,
        path,
        flag,
        exists=is_directory and there == path,
        is_writable=is_directory and os.access(there, os.W_OK | os.X_OK),
        free=shutil.disk_usage(there).free,
    )


def _secret(name: str, path: Path) -> SecretFacts:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return SecretFacts(name, path, None, False)
    return SecretFacts(name, path, mode, os.access(path, os.R_OK))


def _addresses(http: HttpConfig) -> list[str]:
    if http.host is None:
        return [*http.listen]
    host = f"[{http.host}]" if ":" in http.host else http.host or "*"
    return [f"{host}:{http.port}", *http.listen]


def _address(text: str) -> AddressFacts:
    """Checks an address by listening on it briefly. For a Unix socket only the directory must
    exist, because the server replaces the socket."""
    try:
        address = parse_address(text)
        if not isinstance(address, TcpAddress):
            directory = address.path.parent
            can_write = os.access(directory, os.W_OK | os.X_OK)
            return AddressFacts(text, None if can_write else f"{directory} cannot be written")
        family, _, _, _, place = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()
    except OSError as error:
        return AddressFacts(text, error.strerror or str(error))
    except FastovmsError as error:
        return AddressFacts(text, str(error))
    return AddressFacts(text, None)


def _database(state: StateConfig, environ: Mapping[str, str]) -> DatabaseFacts | None:
    if state.state_url is None:
        return None
    try:
        import psycopg

        from fastovms.parts.postgres.server_address import read_address
    except ImportError as error:
        return DatabaseFacts("--state-url", f"{error}: pip install '.[postgres]'")
    try:
        address = read_address(state.state_url, state.password_file, environ)
        parameters = address.connection_parameters() | {"connect_timeout": _CONNECT_TIMEOUT}
        with psycopg.connect(**parameters) as connection:  # type: ignore[arg-type]
            connection.execute("SELECT 1")
    except FastovmsError as error:
        return DatabaseFacts("--state-url", str(error))
    except psycopg.Error as error:
        return DatabaseFacts(str(address), " ".join(str(error).split()))
    return DatabaseFacts(str(address), None)


_DECOMPRESSION: Final = frozenset(
    ("Convert", "Subtract", "Multiply", "Reshape", "Transpose", "Unsqueeze")
)
"""Operations between a stored weight and its decompressed value."""

_NUM_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_NUM_ACTIVE: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk")
"""Names in model configurations for the number of experts and for the number of experts per
token."""


@dataclass(frozen=True, slots=True)
class WeightTraffic:
    """The sizes of a model's weights.

    Attributes:
        total: the bytes of all weights.
        looked_up: the bytes of tables from which a token reads one row, such as embeddings.
        experts: the bytes of routed experts.
        active_share: the share of the experts that a token uses; 1.0 = the model has no experts, or
            the configuration does not give the number.
    """

    total: int
    looked_up: int
    experts: int
    active_share: float

    @property
    def per_token(self) -> int:
        """The bytes of weights that decoding one token of one sequence reads."""
        always = self.total - self.looked_up - self.experts
        return int(always + self.experts * self.active_share)


def read_traffic(model: ov.Model, config: Mapping[str, object]) -> WeightTraffic:
    """Returns the sizes of a graph's weights, without reading their values. `config` is the content
    of config.json."""
    num_experts = _first_of(config, _NUM_EXPERTS)
    num_active = _first_of(config, _NUM_ACTIVE)
    total = looked_up = experts = 0
    for node in model.get_ops():
        if node.get_type_name() != "Constant":
            continue
        size = node.get_byte_size()
        total += size
        if all(user.get_type_name() == "Gather" and not number for user, number in _users(node)):
            looked_up += size
        elif num_experts and _is_expert(node, num_experts):
            experts += size
    is_known = bool(experts and num_active)
    share = num_active / num_experts if is_known else 1.0
    return WeightTraffic(total, looked_up, experts, min(1.0, share))


def _users(node: ov.Node) -> Iterator[tuple[ov.Node, int]]:
    """Yields each node that uses a constant, after decompression, and the index of its input."""
    pending = [node]
    while pending:
        for output in pending.pop().outputs():
            for target in output.get_target_inputs():
                user = target.get_node()
                if user.get_type_name() in _DECOMPRESSION:
                    pending.append(user)
                else:
                    yield user, target.get_index()


def _is_expert(node: ov.Node, num_experts: int) -> bool:
    """Returns whether a weight belongs to routed experts, judged by its shape or name."""
    name, shape = node.get_friendly_name(), node.get_output_shape(0)
    if "shared_expert" in name:
        return False
    return ".experts." in name or (len(shape) > 2 and shape[0] == num_experts)


def _first_of(config: Mapping[str, object], names: tuple[str, ...]) -> int:
    """Returns the first of the named integers in the configuration or in its text section; 0 = not
    found."""
    for scope in (config, config.get("text_config")):
        for name in names:
            value = scope.get(name) if isinstance(scope, Mapping) else None
            if isinstance(value, int):
                return value
    return 0


_STEP: Final = tuning.DECODES[1]
_RUN_SECONDS: Final = 5.0
_MAX_STEPS: Final = 200


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The settings with which the paged engine runs a model.

    Attributes:
        way: the name of the precisions.
        way_reason: why these precisions were chosen.
        token_budget: the maximum number of tokens of a step.
        kv_bytes_per_token: the bytes of KV cache per token.
        context: the context length of the test run in tokens.
        seconds_per_token: seconds per token of one sequence; None = not run, or too slow.
        decode_kernels: whether the decode kernels are used, and why not.
        cache_limit: the maximum bytes of the KV cache.
        packed_weights: the bytes of the decode kernels' packed weights; None = unknown until a
            server has packed them.
    """

    way: str
    way_reason: str
    token_budget: int
    kv_bytes_per_token: float
    context: int
    seconds_per_token: float | None
    decode_kernels: str = ""
    cache_limit: int = 0
    packed_weights: int | None = 0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model and its backend.

    Attributes:
        device: OpenVINO's name of the device.
        backend_reason: why this backend was chosen.
        run: None = the model runs with the genai backend, which is not examined.
        histories: the result of rendering each kind of message history.
    """

    name: str
    path: Path
    max_model_len: int
    device: str
    traffic: WeightTraffic
    backend: str
    backend_reason: str
    run: RunFacts | None
    histories: Mapping[str, str] = field(default_factory=dict)


def read_model(model: ModelConfig, directory: Path, cache: DiskCache, *, runs: bool) -> ModelFacts:
    """Reads a model and compiles it for the paged backend, which takes seconds. Raises
    ConfigurationError if a file is missing or broken, or the device cannot run the model.

    Args:
        directory: the model's directory, or the directory converted from its GGUF file.
        runs: whether to also generate tokens, for some seconds.
    """
    info = read_model_info(directory, name=model.name, generation_config=model.generation_config)
    graph = ov.Core().read_model(graph_file(directory))
    template = load_chat(directory, model.chat, cache).template
    backend, reason, files = _choose_backend(directory, model.engine)
    return ModelFacts(
        name=model.name,
        path=model.path,
        max_model_len=model.engine.max_model_len or info.max_model_len,
        device=device_of(model.engine) if files is None else files.device,
        traffic=read_traffic(graph, info.config),
        backend=backend,
        backend_reason=reason,
        run=None if files is None else _run(files, model.engine, cache, runs=runs),
        histories={} if template is None else template.matrix,
    )


def _choose_backend(directory: Path, engine: EngineConfig) -> tuple[str, str, ExportedModel | None]:
    """Returns the backend's name, the reason for the choice, and the model as read by the paged
    backend (None = another backend)."""
    if engine.backend == "genai":
        return "genai", "as --backend says", None
    if takes_images(directory):
        return "genai", "the model takes images", None
    try:
        files = read_files(directory, engine)
    except UnsupportedModel as error:
        if engine.backend == "paged":
            raise
        return "genai", str(error), None
    reason = "as --backend says" if engine.backend == "paged" else "it can run the model"
    return "paged", reason, files


def _run(files: ExportedModel, engine: EngineConfig, cache: DiskCache, *, runs: bool) -> RunFacts:
    kept = find_kept(files, engine, cache) if engine.tune else None
    choices = files.choices
    if kept is not None:
        choices = sorted(choices, key=lambda choice: choice.name != kept.name)
    precisions, model = files.compile(choices)
    why_not = why_no_kernels(files, engine)
    kernels = f"not used: {why_not}"
    num_packed: int | None = 0
    if why_not is None:
        decode_kernels = DecodeKernels(model, cache, max_model_len=files.max_model_len)
        kernels = "not known: a server finds it out during the first requests for this model"
        num_packed = None
        if decode_kernels.restore():
            kernels = decode_kernels.status
            num_packed = decode_kernels.add_stats(BackendStats()).packed_weights_bytes
    seconds = None
    if runs:
        times: Mapping[str, tuning.Times] = tuning.measure(
            {precisions.name: model},
            [_STEP],
            time.perf_counter,
            max_seconds=_RUN_SECONDS,
            max_rounds=_MAX_STEPS,
        )
        steps = times[precisions.name][_STEP]
        seconds = statistics.median(steps) if steps else None
    num_contexts = min(engine.max_num_seqs, engine.token_budget)
    num_blocks = num_cache_blocks(
        engine.cache_size,
        bytes_per_block=model.bytes_per_block,
        max_useful_blocks=num_contexts * -(-files.max_model_len // model.block_size),
        available=available_memory(),
    )
    budget = engine.max_num_batched_tokens or (kept.token_budget if kept is not None else None)
    return RunFacts(
        way=precisions.name,
        way_reason=_why(files, engine, cache, is_kept=kept is not None),
        token_budget=budget or engine.token_budget,
        kv_bytes_per_token=model.bytes_per_block / model.block_size,
        context=_STEP.context,
        seconds_per_token=seconds,
        decode_kernels=kernels,
        cache_limit=num_blocks * model.bytes_per_block,
        packed_weights=num_packed,
    )


def _why(files: ExportedModel, engine: EngineConfig, cache: DiskCache, *, is_kept: bool) -> str:
    if is_kept:
        return "measured on this machine to be the fastest"
    if engine.precision == "exact":
        return "--precision exact"
    if len(files.choices) == 1 and files.weights_size <= EXACT_WEIGHTS_SIZE:
        return "the model is so small that f32 costs nothing"
    if len(files.choices) == 1:
        return "the only way that is worth trying here"
    if not engine.tune:
        return "the default: --no-tune measures nothing"
    if not cache.is_kept:
        return "the default: without a cache directory nothing measured would be kept"
    return "the default: nothing was measured yet, which an idle server or fastovms tune does"
