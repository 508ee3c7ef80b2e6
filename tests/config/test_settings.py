"""Settings of several sources become one configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastovms.config.engine_config import EngineConfig
from fastovms.config.http_config import HttpConfig
from fastovms.config.model_config import ModelFiles
from fastovms.config.settings import (
    ENGINE,
    FILES,
    HTTP,
    SOURCE,
    ConfigField,
    Fields,
    ModelSource,
    Settings,
)


def test_what_nobody_has_set_has_its_default():
    settings = Settings.of(HttpConfig, port=1)
    assert settings == Settings({HTTP.port: 1})
    assert settings.section(HttpConfig) == HttpConfig(port=1)
    assert settings.section(EngineConfig) == EngineConfig()


def test_the_right_one_goes_before():
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


def test_sections_by_themselves():
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


def test_a_wrong_name_is_found_where_it_stands():
    with pytest.raises(AttributeError, match="the section has no field ports, only host, port"):
        _ = HTTP.ports
    with pytest.raises(AttributeError, match="the section has no field ports"):
        Settings.of(HttpConfig, ports=1)  # type: ignore[call-arg]
