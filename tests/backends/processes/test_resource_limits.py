"""Limits that processes set themselves."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

INFINITY = resource.RLIM_INFINITY

CHILD = """
import resource, sys
from fastovms.backends.processes.resource_limits import set_soft_limit
soft, hard, value = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
set_soft_limit(resource.RLIMIT_CPU, value)
print(*resource.getrlimit(resource.RLIMIT_CPU))
"""


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ((INFINITY, INFINITY), 50, (50, INFINITY)),
        ((30, INFINITY), 50, (50, INFINITY)),  # the limit of the image before
        ((60, 60), 50, (50, 60)),
        ((30, 40), 50, (40, 40)),
        ((40, 40), 50, (40, 40)),
    ],
)
def test_the_hard_limit_stays(before: tuple[int, int], value: int, after: tuple[int, int]) -> None:
    command = [sys.executable, "-c", CHILD, *map(str, (*before, value))]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert tuple(map(int, result.stdout.split())) == after
