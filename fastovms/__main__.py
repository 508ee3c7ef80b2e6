"""`python -m fastovms`."""

from __future__ import annotations

from fastovms.cli import run

run()
