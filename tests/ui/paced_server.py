"""The real server with the demo model, whose engine takes its time for each step, and for loading a
model on demand, so that there is time to do something meanwhile.

python -m tests.ui.paced_server STEP_SECONDS LOAD_SECONDS serve FLAG...
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from fastovms.app.supply import OneModelLoader
from fastovms.cli import main as cli
from fastovms.engine.engine import Engine


def pace(seconds: float, load_seconds: float) -> None:
    step = Engine.step

    def paced_step(self: Engine, *arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return step(self, *arguments, **options)

    async def paced_load(self: OneModelLoader, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(load_seconds)
        return await load(self, *arguments, **options)

    load = OneModelLoader.load
    Engine.step = paced_step  # type: ignore[method-assign]
    OneModelLoader.load = paced_load  # type: ignore[method-assign]


if __name__ == "__main__":
    pace(float(sys.argv.pop(1)), float(sys.argv.pop(1)))
    cli.run()
