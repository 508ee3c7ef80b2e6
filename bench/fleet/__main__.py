"""Measures several replicas as one server, and what becomes of requests when parts of it fail.

    python -m bench.fleet kill             # one command, at full length
    python -m bench.fleet kill --short     # for a few seconds
    python -m bench.fleet kill --record    # and write the figures into bench/results/scale.md

It exits with 1 if a figure is beyond its limit.
"""

from __future__ import annotations

from pathlib import Path

from bench.figures.command_line import CommandLine

LINE = CommandLine(
    "bench.fleet",
    str(__doc__),
    Path(__file__).parents[2] / "bench" / "results" / "scale.md",
    {
        "latency": "bench.fleet.latency",
        "affinity": "bench.fleet.affinity",
        "kill": "bench.fleet.kill",
        "rolling": "bench.fleet.rolling",
        "database": "bench.fleet.database",
        "follow": "bench.fleet.follow",
        "ray": "bench.fleet.through_ray",
        "writes": "bench.fleet.writes",
    },
)

if __name__ == "__main__":
    LINE.run()
