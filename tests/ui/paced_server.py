"""The real server with the demo model, whose engine takes its time for each step, so that there is
time to do something in the middle of an answer.

python -m tests.ui.paced_server SECONDS serve FLAG...
"""

from __future__ import annotations

import sys
import time
from typing import Any

from fastovms.cli import main as cli
from fastovms.engine.engine import Engine


def pace(seconds: float) -> None:
    step = Engine.step

    def paced_step(self: Engine, *arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return step(self, *arguments, **options)

    Engine.step = paced_step  # type: ignore[method-assign]


if __name__ == "__main__":
    pace(float(sys.argv.pop(1)))
    cli.run()
