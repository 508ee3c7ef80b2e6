"""Runs endurance tests against real server processes.

    python -m bench.endurance bytes            # one test at full length
    python -m bench.endurance bytes --short    # one test for a few seconds
    python -m bench.endurance --short          # all tests for a few seconds each
    python -m bench.endurance soak --record    # write the figures into bench/results/reliability.md

The exit status is 1 if a figure exceeds its limit.
"""

from __future__ import annotations

from pathlib import Path

from bench.figures.command_line import CommandLine

LINE = CommandLine(
    "bench.endurance",
    str(__doc__),
    Path(__file__).parents[2] / "bench" / "results" / "reliability.md",
    {
        "bytes": "bench.endurance.http_attack.mutated_bytes",
        "bodies": "bench.endurance.body_attack.mutated_bodies",
        "schemas": "bench.endurance.body_attack.schemas",
        "stalls": "bench.endurance.body_attack.stalls",
        "images": "bench.endurance.images",
        "storm": "bench.endurance.http_attack.storm",
        "crash": "bench.endurance.state_faults.crash",
        "disk": "bench.endurance.state_faults.disk",
        "resume": "bench.endurance.state_faults.resume",
        "batches": "bench.endurance.batch_faults",
        "prefixes": "bench.endurance.prefix_faults.prefixes",
        "engine": "bench.endurance.engine_faults",
        "shares": "bench.endurance.shares",
        "neighbours": "bench.endurance.load.neighbours",
        "restart": "bench.endurance.load.restart",
        "soak": "bench.endurance.load.soak",
    },
)

if __name__ == "__main__":
    LINE.run()
