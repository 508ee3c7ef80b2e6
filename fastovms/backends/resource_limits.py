"""Limits that a child process sets itself, so that what a client sends cannot take more."""

from __future__ import annotations

import resource


def set_soft_limit(limit: int, value: int) -> None:
    """Bounds one of the `resource.RLIMIT_*`s for this process. A hard limit, such as the service
    manager or the operator has set, stays as it is, and the bound is not above it: only root may
    raise those."""
    _, hard = resource.getrlimit(limit)
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (soft, hard))
