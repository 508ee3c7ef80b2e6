"""Runs the command line: `python -m fastovms`."""

from __future__ import annotations

from fastovms.cli.main import run

run()
