from __future__ import annotations

from fastovms.api.serving.release import uncounted


def test_nothing_is_counted():
    release = uncounted()
    release()
    release()
