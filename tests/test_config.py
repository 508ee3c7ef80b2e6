"""Tests of `fastovms/config.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.config import EngineConfig, HttpConfig
from fastovms.server_config import (
    ENGINE,
    FILES,
    HTTP,
    SOURCE,
    ConfigField,
    Fields,
    ModelFiles,
    ModelSource,
    Settings,
)

# Settings of several sources become one configuration.


def test_unset_settings_have_defaults():
    settings = Settings.of(HttpConfig, port=1)
    assert settings == Settings({HTTP.port: 1})
    assert settings.section(HttpConfig) == HttpConfig(port=1)
    assert settings.section(EngineConfig) == EngineConfig()


def test_right_settings_override_left_ones():
    low = Settings({ENGINE.device: "GPU", ENGINE.max_num_seqs: 3})
    high = Settings({ENGINE.max_num_seqs: 4, HTTP.port: 1})
    assert (low | high).given == {ENGINE.device: "GPU", ENGINE.max_num_seqs: 4, HTTP.port: 1}
    assert (high | low).given == {ENGINE.device: "GPU", ENGINE.max_num_seqs: 3, HTTP.port: 1}
    assert low | Settings() == Settings() | low == low


def test_a_default_that_is_given_counts_as_given():
    low = Settings.of(EngineConfig, device="GPU")
    assert (low | Settings.of(EngineConfig, device="CPU")).section(EngineConfig).device == "CPU"


def test_members_of_mappings_are_merged_by_themselves():
    low = Settings.of(EngineConfig, plugin_config={"A": 1, "B": 1})
    high = Settings.of(EngineConfig, plugin_config={"B": 2, "C": 2})
    assert (low | high).given == {ENGINE.plugin_config: {"A": 1, "B": 2, "C": 2}}
    assert low.given == {ENGINE.plugin_config: {"A": 1, "B": 1}}, "the sources stay as they are"


def test_settings_of_one_section_leave_others_unset():
    settings = Settings({ENGINE.device: "GPU", HTTP.port: 1, FILES.path: Path("m")})
    assert settings.only(EngineConfig, ModelFiles).given == {
        ENGINE.device: "GPU",
        FILES.path: Path("m"),
    }


@pytest.mark.parametrize("section", [EngineConfig, HttpConfig, ModelSource])
def test_fields_know_their_defaults(section):
    for name, field in vars(Fields(section)).items():
        assert field == ConfigField(section, name)
        assert field.default == getattr(section(), name)
    assert str(SOURCE.location) == "ModelSource.location"


def test_unknown_field_of_a_section_is_refused():
    with pytest.raises(AttributeError, match="the section has no field ports, only host, port"):
        _ = HTTP.ports
    with pytest.raises(AttributeError, match="the section has no field ports"):
        Settings.of(HttpConfig, ports=1)  # type: ignore[call-arg]


# Settings of the server that follow from others.


@pytest.mark.parametrize(
    ("max_body", "max_buffered", "largest"), [(10, 100, 10), (100, 100, 50), (100, 101, 50)]
)
def test_no_body_takes_more_than_half_of_what_all_may(
    max_body: int, max_buffered: int, largest: int
) -> None:
    config = HttpConfig(max_body=max_body, max_buffered_bodies=max_buffered)
    assert config.largest_body == largest


# Settings of the engine that follow from others.


@pytest.mark.parametrize(("given", "budget"), [(100, 100), (1, 1)])
def test_token_budget_is_max_num_batched_tokens(given: int, budget: int) -> None:
    assert EngineConfig(max_num_batched_tokens=given).token_budget == budget
    assert EngineConfig().token_budget > 0
