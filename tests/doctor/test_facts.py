"""Tests of `fastovms/parts/doctor/facts.py`."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from fastovms.config import EngineConfig, HttpConfig
from fastovms.errors import ConfigurationError
from fastovms.parts.doctor.facts import (
    InstallationFacts,
    measure_bandwidth,
    read_installation,
    read_machine,
    read_model,
    read_traffic,
)
from fastovms.server_config import DEMO_MODEL, ModelConfig, SecurityConfig, StateConfig
from fastovms.system.disk import DiskCache
from tests.fake_cgroup import write_cgroup2

CPUINFO = """processor\t: 0
model name\t: Intel(R) Core(TM) Ultra 7
flags\t\t: fpu avx2 avx_vnni

processor\t: 1
model name\t: another
flags\t\t: fpu
"""


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_machine_facts_are_read_from_kernel_files(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/meminfo": "MemAvailable: 8388608 kB",
        "proc/loadavg": "1.25 0.50 0.25 3/400 999",
        "sys/devices/cpu_core/cpus": "0-11",
        "sys/devices/cpu_atom/cpus": "12-19,21",
        "sys/devices/system/cpu/online": "0-21",
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0-1",
        "sys/devices/system/cpu/cpu0/cache/index2/size": "2048K",
        "sys/devices/system/cpu/cpu0/cache/index3/size": "24M",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave",
        "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "performance",
        "sys/devices/system/cpu/cpufreq/policy2/scaling_governor": "powersave",
        "sys/devices/system/node/has_memory": "0-1",
    }
    write(tmp_path, **files)
    limits = {"cpu.max": "150000 100000", "memory.max": "3000", "memory.current": "1000"}
    write_cgroup2(tmp_path, limits)
    facts = read_machine(tmp_path)
    assert facts.model == "Intel(R) Core(TM) Ultra 7"
    assert facts.flags == {"fpu", "avx2", "avx_vnni"}
    assert facts.num_cpus == 22
    assert facts.kinds == {"performance": 12, "efficiency": 9}
    assert facts.threads_per_core == 2
    assert facts.governors == {"powersave": 2, "performance": 1}
    assert facts.num_numa_nodes == 2
    assert facts.last_level_cache == 24 * 1024**2
    assert facts.quota == 1.5
    assert facts.load == 1.25
    assert facts.num_threads <= 2
    assert facts.available_memory == facts.memory_limit_left == 2000


def test_missing_kernel_files_give_unknown_facts(tmp_path: Path) -> None:
    write(tmp_path, **{"proc/meminfo": "MemAvailable: 1 kB"})
    facts = read_machine(tmp_path)
    assert facts.model == "an unknown processor"
    assert facts.flags == frozenset()
    assert facts.num_cpus >= 1
    assert facts.kinds == facts.governors == {}
    assert facts.threads_per_core == facts.last_level_cache == 0
    assert facts.num_numa_nodes == 1
    assert math.isinf(facts.quota)


def test_memory_bandwidth_is_measured() -> None:
    rate = measure_bandwidth(2, 1024, 64 * 1024 * 1024, max_seconds=0.05)
    assert 1e8 < rate < 1e13


def read(**given: object) -> InstallationFacts:
    """Returns the facts of an installation with the given sections."""
    sections = {
        "engine": EngineConfig(cache_dir=""),
        "http": HttpConfig(host=None),
        "security": SecurityConfig(),
        "state": StateConfig(enable_store=False),
        **given,
    }
    return read_installation(*sections.values(), {})  # type: ignore[arg-type]


def test_directories_are_examined_without_being_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    facts = read(
        engine=EngineConfig(cache_dir=str(tmp_path)),
        state=StateConfig(state_dir=str(tmp_path / "new/state")),
    )
    cache, state = facts.directories
    assert (cache.path, cache.exists, cache.is_writable) == (tmp_path, True, True)
    assert (state.path, state.exists, state.is_writable) == (tmp_path / "new/state", False, True)
    assert cache.free == pytest.approx(state.free, rel=0.1)
    assert not (tmp_path / "new").exists(), "nothing is made"
    for place in ("file", "file/state"):
        [broken] = read(engine=EngineConfig(cache_dir=str(tmp_path / place))).directories
        assert (broken.exists, broken.is_writable) == (False, False)
    [unused] = read(state=StateConfig(state_dir=":memory:")).directories
    assert unused.path is None


def test_secret_files_are_examined_for_mode_and_access(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k")
    keys.chmod(0o640)
    facts = read(
        security=SecurityConfig(api_key_file=keys),
        http=HttpConfig(host=None, tls_certificate="cert.pem", tls_key=str(tmp_path / "none")),
        state=StateConfig(enable_store=False, password_file=keys),
    )
    found = [(secret.name, secret.mode, secret.is_readable) for secret in facts.secrets]
    assert found == [
        ("API keys", 0o640, True),
        ("TLS key", None, False),
        ("password of the state", 0o640, True),
    ]


def test_address_that_cannot_be_bound_has_its_fault(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listen = (f"unix:{tmp_path}/s", "unix:/none/s", "nowhere", "[::1]:0", "no.invalid:80")
        facts = read(http=HttpConfig(host="127.0.0.1", port=port, listen=listen))
    faults = {found.address: found.fault for found in facts.addresses}
    assert faults.pop(f"127.0.0.1:{port}") == "Address already in use"
    assert faults.pop(f"unix:{tmp_path}/s") is None
    assert faults.pop("unix:/none/s") == "/none cannot be written"
    assert "expected host:port" in (faults.pop("nowhere") or "")
    assert faults.pop("no.invalid:80")
    assert set(faults) == {"[::1]:0"}
    assert read(http=HttpConfig(host="", port=0)).addresses[0].fault is None


def test_database_that_does_not_answer_has_its_fault() -> None:
    database = read(state=StateConfig(state_url="postgresql://u:secret@127.0.0.1:1/d")).database
    assert database is not None
    assert database.address == "postgresql://127.0.0.1/d"
    assert "refused" in (database.fault or "")
    assert "secret" not in str(database)
    wrong = read(state=StateConfig(state_url="x://")).database
    assert wrong is not None
    assert "not a URL that libpq understands" in (wrong.fault or "")
    assert read().database is None


WIDTH, VOCABULARY, EXPERTS = 8, 100, 4
MATRIX = WIDTH * WIDTH
TABLE = VOCABULARY * WIDTH


def constant(*shape: int, name: str = "weight") -> ov.Node:
    node = ops.constant(np.zeros(shape, np.int8))
    node.set_friendly_name(name)
    return node


def model(*, is_tied: bool, expert: str | None = None) -> ov.Model:
    """Returns a model with an embedding, a matrix, optional experts, and the logits. Weights have
    one byte each and are decompressed as in real models."""
    token = ops.parameter([-1], np.int64, "token")
    scale = ops.constant(np.float32(1))
    table = ops.multiply(ops.convert(constant(VOCABULARY, WIDTH), np.float32), scale)
    hidden = ops.gather(table, token, ops.constant(np.int64(0)))
    hidden = ops.matmul(hidden, ops.convert(constant(WIDTH, WIDTH), np.float32), False, True)
    if expert == "named":
        for number in range(EXPERTS):
            weight = constant(WIDTH, WIDTH, name=f"layers.0.experts.{number}.up")
            hidden = ops.matmul(hidden, ops.convert(weight, np.float32), False, True)
    elif expert == "stacked":
        stacked = ops.convert(constant(EXPERTS, WIDTH, WIDTH), np.float32)
        hidden = ops.matmul(hidden, stacked, False, True)
    elif expert == "shared":
        weight = constant(WIDTH, WIDTH, name="layers.0.shared_experts.experts.up")
        hidden = ops.matmul(hidden, ops.convert(weight, np.float32), False, True)
    head = table if is_tied else ops.convert(constant(VOCABULARY, WIDTH), np.float32)
    return ov.Model([ops.matmul(hidden, head, False, True)], [token])


AXIS, SCALE = 8, 4
"""The sizes of these weights in bytes."""


def test_embedding_table_that_is_looked_up_is_not_read() -> None:
    traffic = read_traffic(model(is_tied=False), {})
    assert traffic.total == 2 * TABLE + MATRIX + SCALE + AXIS
    assert traffic.looked_up == TABLE + SCALE
    assert traffic.per_token == TABLE + MATRIX + AXIS


def test_embedding_table_that_is_also_the_head_is_read() -> None:
    traffic = read_traffic(model(is_tied=True), {})
    assert traffic.looked_up == 0
    assert traffic.per_token == traffic.total == TABLE + MATRIX + SCALE + AXIS


@pytest.mark.parametrize("expert", ["named", "stacked"])
@pytest.mark.parametrize(
    "config",
    [
        {"num_experts": EXPERTS, "num_experts_per_tok": 1},
        {"text_config": {"num_local_experts": EXPERTS, "num_experts_per_token": 1}},
    ],
)
def test_token_reads_only_its_experts(expert: str, config: Mapping[str, object]) -> None:
    traffic = read_traffic(model(is_tied=True, expert=expert), config)
    assert traffic.experts == EXPERTS * MATRIX
    assert traffic.active_share == 1 / EXPERTS
    assert traffic.per_token == traffic.total - (EXPERTS - 1) * MATRIX


def test_unknown_experts_count_in_full() -> None:
    assert read_traffic(model(is_tied=True, expert="named"), {}).experts == 0
    unknown = read_traffic(model(is_tied=True, expert="named"), {"num_experts": EXPERTS})
    assert unknown.per_token == unknown.total


def test_shared_experts_compute_every_token() -> None:
    config = {"num_experts": EXPERTS, "num_experts_per_tok": 1}
    assert read_traffic(model(is_tied=True, expert="shared"), config).experts == 0


NOTHING_KEPT = DiskCache(None)


def demo(**engine: object) -> ModelConfig:
    return ModelConfig(DEMO_MODEL, ("demo",), EngineConfig(**engine))  # type: ignore[arg-type]


@pytest.mark.slow
def test_facts_of_the_demo_model_include_a_run() -> None:
    facts = read_model(demo(), DEMO_MODEL, NOTHING_KEPT, runs=True)
    assert (facts.name, facts.device, facts.backend) == ("demo", "CPU", "paged")
    assert facts.max_model_len == 2048
    size = (DEMO_MODEL / "openvino_model.bin").stat().st_size
    assert facts.traffic.total == pytest.approx(size, rel=0.05)
    run = facts.run
    assert run is not None
    assert run.way.startswith("f32")
    assert "so small" in run.way_reason
    assert run.token_budget == 256
    assert run.kv_bytes_per_token > 0
    assert run.cache_limit > run.kv_bytes_per_token * facts.max_model_len
    assert run.seconds_per_token is not None
    assert 0 < run.seconds_per_token < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({"precision": "exact"}, "--precision exact"),
        ({"plugin_config": {"KV_CACHE_PRECISION": "u8"}}, "so small"),
    ],
)
def test_way_to_run_the_model_has_a_reason(engine: dict[str, object], reason: str) -> None:
    model = demo(max_num_batched_tokens=64, **engine)
    run = read_model(model, DEMO_MODEL, NOTHING_KEPT, runs=False).run
    assert run is not None
    assert reason in run.way_reason
    assert run.token_budget == 64
    assert run.seconds_per_token is None


@pytest.mark.slow
def test_genai_backend_has_no_run_facts() -> None:
    facts = read_model(demo(backend="genai"), DEMO_MODEL, NOTHING_KEPT, runs=True)
    assert (facts.backend, facts.backend_reason, facts.run) == ("genai", "as --backend says", None)


def test_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="openvino_model"):
        read_model(replace(demo(), path=tmp_path), tmp_path, NOTHING_KEPT, runs=False)
