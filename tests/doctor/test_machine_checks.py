from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from fastovms.doctor.finding import Level
from fastovms.doctor.machine_checks import MACHINE_CHECKS
from fastovms.doctor.machine_facts import MachineFacts
from fastovms.engine.model.machine.device_memory import GIB

FINE = MachineFacts(
    model="Xeon",
    flags=frozenset({"avx2", "avx512f", "avx512_vnni", "amx_int8"}),
    num_cpus=8,
    num_allowed=8,
    num_threads=8,
    quota=math.inf,
    threads_per_core=1,
    kinds={},
    governors={"performance": 8},
    num_numa_nodes=1,
    last_level_cache=GIB // 32,
    available_memory=16 * GIB,
    memory_limit_left=math.inf,
    load=0.5,
)


def found(facts: MachineFacts) -> list[tuple[Level, str, str, str]]:
    return [
        (finding.level, finding.topic, finding.text, finding.advice)
        for check in MACHINE_CHECKS
        for finding in check(facts)
    ]


def test_a_fine_machine() -> None:
    assert {level for level, *_ in found(FINE)} == {Level.OK}
    texts = " ".join(text for _, _, text, _ in found(FINE))
    assert "Xeon: AVX2, AVX-512, AVX-512 VNNI, AMX INT8" in texts
    assert "8 logical processors; the engine computes with 8 threads" in texts


@pytest.mark.parametrize(
    ("changes", "level", "topic", "words"),
    [
        ({"flags": frozenset({"sse2"})}, Level.WARNING, "processor", "none of AVX2"),
        ({"flags": frozenset({"avx2"})}, Level.NOTE, "processor", "without VNNI"),
        ({"flags": frozenset({"avx2", "avx_vnni"})}, Level.OK, "processor", "AVX-VNNI"),
        (
            {"kinds": {"performance": 4, "efficiency": 4}},
            Level.NOTE,
            "cores",
            "several kinds share each step",
        ),
        ({"threads_per_core": 2}, Level.OK, "cores", "2 to a core"),
        ({"num_allowed": 2}, Level.NOTE, "limits", "2 of 8 processors"),
        ({"quota": 1.5, "num_threads": 2}, Level.WARNING, "limits", "1.5 processors' time"),
        ({"quota": 1.0, "num_threads": 1}, Level.NOTE, "limits", "1 thread compute"),
        ({"quota": 8.0}, Level.OK, "limits", "8 processors' time"),
        ({"available_memory": GIB // 2}, Level.WARNING, "memory", "0.5 GiB"),
        ({"memory_limit_left": 2.0 * GIB}, Level.OK, "memory", "control group's limit"),
        ({"load": 9.25}, Level.NOTE, "load", "9.2 tasks want 8 processors"),
        ({"governors": {"powersave": 8}}, Level.WARNING, "governor", "powersave"),
        ({"governors": {}}, Level.OK, "governor", "none to be seen"),
        ({"num_numa_nodes": 2}, Level.NOTE, "NUMA", "2 nodes"),
    ],
)
def test_what_is_told(changes: Mapping[str, object], level: Level, topic: str, words: str) -> None:
    findings = found(replace(FINE, **changes))  # type: ignore[arg-type]
    assert [
        text for of, where, text, _ in findings if (of, where) == (level, topic) and words in text
    ]
    assert all(advice for of, _, _, advice in findings if of is Level.WARNING)
