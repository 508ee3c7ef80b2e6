"""How long a model is to stay."""

from __future__ import annotations

import pytest

from fastovms.api.serving.keep_alive import departure, unloads
from fastovms.api.serving.served import KnownModel, ServedModels
from fastovms.errors import InvalidField
from tests.fakes import make_request


@pytest.mark.parametrize(
    ("given", "leaves"),
    [
        (None, False),
        (0, True),
        (0.0, True),
        (-1, False),
        (300, False),
        ("0", True),
        ("0s", True),
        ("0m0s", True),
        ("5m", False),
        ("1h30m", False),
        ("1.5h", False),
        ("-1m", False),
        ("-1", False),
        ("500\u00b5s", False),
    ],
)
def test_durations(given: str | float | None, leaves: bool) -> None:
    assert unloads(given) is leaves


@pytest.mark.parametrize("given", ["", "m", "5 minutes", "five", "1d", "1" * 100])
def test_no_durations(given: str) -> None:
    with pytest.raises(InvalidField, match="keep_alive must be"):
        unloads(given)


class Holder:
    def __init__(self, loads_on_demand: bool) -> None:
        self.loads_on_demand = loads_on_demand
        self.dismissed: list[str] = []

    def dismiss(self, name: str) -> None:
        self.dismissed.append(name)


@pytest.mark.parametrize(
    ("keep_alive", "loads_on_demand", "is_admin", "reason"),
    [
        (0, True, True, None),
        (0, True, False, "only an operator may unload it"),
        (0, False, True, "does not load models on demand"),
        (0, None, True, "does not load models on demand"),
        ("5m", False, True, None),
        (None, True, True, None),
    ],
)
def test_who_has_a_model_leave(keep_alive, loads_on_demand, is_admin, reason) -> None:
    models, request = ServedModels(), make_request("POST", "/api/chat")
    request.is_admin = is_admin
    holder = None if loads_on_demand is None else Holder(loads_on_demand)
    models.holder = holder
    with departure(keep_alive, request, KnownModel("m"), models) as leaving:
        assert holder is None or not holder.dismissed
    assert leaving.is_wanted is (keep_alive == 0)
    assert leaving.happens is (leaving.is_wanted and reason is None)
    assert (reason is None) is (leaving.warnings == ())
    assert reason is None or reason in leaving.warnings[0]
    assert holder is None or holder.dismissed == ["m"] * leaving.happens
