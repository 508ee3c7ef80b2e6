from __future__ import annotations

from fastovms.api.serving.release import no_hold


def test_nothing_is_counted():
    release = no_hold()
    release()
    release()
