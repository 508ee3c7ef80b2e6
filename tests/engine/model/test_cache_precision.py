from __future__ import annotations

import pytest

from fastovms.engine.model.cache_precision import CACHE_PRECISIONS, check_cpu_cache
from fastovms.errors import ConfigurationError


@pytest.mark.parametrize("value", [*CACHE_PRECISIONS, "FP16", "BF16", "FP32"])
def test_cache_precision_of_the_cpu_is_accepted(value: str) -> None:
    check_cpu_cache({"KV_CACHE_PRECISION": value})


@pytest.mark.parametrize("value", ["u3", "", 8, True])
@pytest.mark.parametrize("name", ["KV_CACHE_PRECISION", "VALUE_CACHE_PRECISION"])
def test_cache_precision_that_the_cpu_lacks_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be u4, .* or f32, not {value!r}"):
        check_cpu_cache({name: value})
