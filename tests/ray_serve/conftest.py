from __future__ import annotations

import warnings

import pytest


@pytest.fixture(scope="session")
def ray_serve() -> None:
    """Ray is imported, whose own deprecated calls are no faults of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("ray.serve", reason="Ray is missing: pip install -e '.[ray]'")
