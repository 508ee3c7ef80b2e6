"""`python -m fastovms`."""

from __future__ import annotations

import sys

from fastovms.cli import main

sys.exit(main())
