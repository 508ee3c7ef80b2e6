"""Tests of `fastovms/parts/ovms/config_list.py`."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from fastovms.cli.ovms_modes import add_model, list_models, remove_model
from fastovms.config import EngineConfig
from fastovms.errors import ConfigurationError
from fastovms.parts.ovms.config_list import read_config_list, write_file
from fastovms.server_config import (
    ModelResidency,
    ModelSource,
    ResidencyConfig,
    ServiceConfig,
    Settings,
)

# Configuration files are written completely or not at all.


def test_file_that_cannot_be_written_keeps_its_content(tmp_path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "f"
    write_file(path, "old é")
    with pytest.raises(ConfigurationError, match="cannot write"):
        write_file(path, "\ud800")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ConfigurationError, match="No space left"):
        write_file(path, "new")
    assert path.read_text(encoding="utf-8") == "old é"


def test_written_file_keeps_its_links_owner_and_mode(tmp_path) -> None:
    real = tmp_path / "real" / "f"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o640)
    owner = (0, 4242) if os.getuid() == 0 else (real.stat().st_uid, real.stat().st_gid)
    os.chown(real, *owner)
    link = tmp_path / "f"
    link.symlink_to(Path("real", "f"))
    write_file(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    status = real.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o640, *owner)
    assert os.listdir(tmp_path / "real") == ["f"]


def test_file_of_another_owner_is_written(tmp_path, monkeypatch) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError

    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o600)
    is_asked: list[object] = []
    old = path.stat()
    other = os.stat_result((*old[:4], old.st_uid + 1, *old[5:]))
    monkeypatch.setattr(os, "chown", lambda *given: is_asked.append(given) or forbid())
    real_stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda p, **k: other if p == path else real_stat(p, **k))
    write_file(path, "new")
    assert is_asked
    monkeypatch.undo()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


# OVMS's config.json: read, listed and edited.


def write(folder: Path, root: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(root))
    return path


def models_of(root: object, folder: Path) -> list[ModelSource]:
    return read_config_list(write(folder, root)).models


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("graph", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "graph.pbtxt").touch()
    (tmp_path / "other" / "second.pbtxt").touch()
    return tmp_path


def test_listed_models_become_model_sources(folder):
    config = {"name": "org/m", "base_path": "models/m", "target_device": "GPU",
              "plugin_config": {"NUM_STREAMS": 1}}  # fmt: skip
    text = {"name": "n", "base_path": "/models/n", "plugin_config": '{"A": "b"}'}
    root = {"model_config_list": [{"config": config}, {"config": text}]}
    assert models_of(root, folder) == [
        ModelSource(
            str(folder / "models/m"),
            ("org/m",),
            Settings.of(EngineConfig, device="GPU", plugin_config={"NUM_STREAMS": 1}),
        ),
        ModelSource("/models/n", ("n",), Settings.of(EngineConfig, plugin_config={"A": "b"})),
    ]


def test_listed_graphs_become_model_sources(folder):
    root = {
        "model_config_list": [],
        "mediapipe_config_list": [
            {"name": "graph"},
            {"name": "a", "base_path": "graph"},
            {"name": "b", "base_path": str(folder / "other"), "graph_path": "second.pbtxt",
             "subconfig": "subconfig.json"},
        ],
    }  # fmt: skip
    assert models_of(root, folder) == [
        ModelSource(str(folder / "graph/graph.pbtxt"), ("graph",)),
        ModelSource(str(folder / "graph/graph.pbtxt"), ("a",)),
        ModelSource(str(folder / "other/second.pbtxt"), ("b",)),
    ]


def test_monitoring_of_a_list_enables_the_metrics(folder):
    root = {"mediapipe_config_list": [{"name": "graph"}]}
    write(folder, root)
    assert read_config_list(folder).settings.section(ServiceConfig).ovms_metrics is False
    for enable in (True, False):
        monitoring = {"metrics": {"enable": enable, "metrics_list": ["ovms_streams"]}}
        path = write(folder, {**root, "monitoring": monitoring})
        assert read_config_list(path).settings.section(ServiceConfig).ovms_metrics is enable


def test_tensor_options_of_a_list_are_logged(folder, caplog):
    config = {"name": "m", "base_path": "m", "batch_size": "16", "nireq": 4}
    assert len(models_of({"model_config_list": [{"config": config}]}, folder)) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"model_config_list[0].config.{name} is not used: it is about models of tensors"
        for name in ("batch_size", "nireq")
    ]


def test_unknown_members_are_named_with_their_place_and_ignored(folder, caplog):
    root = {
        "model_config_list": [{"config": {"name": "m", "base_path": "m", "new": 1}, "x": 1}],
        "mediapipe_config_list": [{"name": "graph", "new": 2}],
        "monitoring": {"metrics": {"y": 1}},
        "z": {},
    }
    assert [model.names for model in models_of(root, folder)] == [("m",), ("graph",)]
    named = {record.getMessage().partition(" is not used: ")[0] for record in caplog.records}
    assert named == {
        "model_config_list[0].config.new", "model_config_list[0].x",
        "mediapipe_config_list[0].new", "monitoring.metrics.y", "the file.z",
    }  # fmt: skip


def test_groups_and_idle_times_are_read(folder, caplog):
    def model(name, **members):
        return {"config": {"name": name, "base_path": name, **members}}

    root = {
        "idle_unload_timeout_seconds": 60,
        "model_config_list": [
            model("a", group_name="rag", idle_unload_timeout_seconds=300),
            model("b", group_name="permanent"),
            model("c", permanent=True, group_name=""),
            model("d", permanent=False, idle_unload_timeout_seconds=0),
        ],
        "mediapipe_config_list": [{"name": "graph", "group_name": "rag"}],
    }
    listed = read_config_list(write(folder, root))
    assert listed.settings.section(ResidencyConfig).idle_unload == 60
    assert [model.residency for model in listed.models] == [
        ModelResidency(300, "rag"),
        ModelResidency(None, "permanent"),
        ModelResidency(None, "permanent"),
        ModelResidency(0, "d"),  # a group of its own
        ModelResidency(None, "rag"),
    ]
    assert not caplog.records
    alone = {"model_config_list": [model("a"), model("b", group_name="permanent")]}
    assert [model.residency.group for model in models_of(alone, folder)] == ["", "permanent"]


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ([], "the file must be an object"),
        ({}, "the file has neither model_config_list nor mediapipe_config_list"),
        ({"model_config_list": {}}, "model_config_list must be a list"),
        ({"model_config_list": [5]}, "model_config_list[0] must be an object"),
        ({"model_config_list": [{}]}, "model_config_list[0].config must be an object"),
        ({"model_config_list": [{"config": {"base_path": "m"}}]}, "config.name must be a string"),
        ({"model_config_list": [{"config": {"name": "m"}}]}, "config.base_path must be a string"),
        ({"model_config_list": [{"config": {"name": "", "base_path": "m"}}]}, "config.name must"),
        ({"model_config_list": [{"config": {"name": "\ud800", "base_path": "m"}}]},
         r"config.name must be text without NUL or lone surrogates, not '\ud800'"),
        ({"model_config_list": [{"config": {"name": "m", "base_path": "m\0"}}]},
         "config.base_path must be text"),
        ({"model_config_list": [{"config": {"name": "m", "base_path": "m", "plugin_config": 5}}]},
         "plugin_config must be an object"),
        ({"mediapipe_config_list": [{"name": "none"}]}, "[0]: there is no graph at"),
        ({"mediapipe_config_list": [{"name": "graph", "graph_path": "x"}]}, "there is no graph at"),
        ({"mediapipe_config_list": [{"name": "graph"}], "monitoring": {"metrics": {"enable": 1}}},
         "monitoring.metrics.enable must be true or false"),
        ({"model_config_list": [], "idle_unload_timeout_seconds": -5},
         "the file.idle_unload_timeout_seconds must be an integer of at least 0, not -5"),
        ({"mediapipe_config_list": [{"name": "graph", "idle_unload_timeout_seconds": True}]},
         "mediapipe_config_list[0].idle_unload_timeout_seconds must be an integer"),
        ({"mediapipe_config_list": [{"name": "graph", "group_name": 5}]},
         "group_name must be a string"),
        ({"mediapipe_config_list": [{"name": "graph", "permanent": 1}]},
         "permanent must be true or false"),
        ({"pipeline_config_list": [{}]}, "pipeline_config_list is for models of tensors"),
    ],
)  # fmt: skip
def test_invalid_config_list_is_refused_by_path_and_field(folder, root, message):
    path = write(folder, root)
    with pytest.raises(ConfigurationError) as caught:
        read_config_list(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


# Editing


def test_model_directories_are_listed(folder):
    deep = folder / "org" / "name"
    deep.mkdir(parents=True)
    (deep / "openvino_model.xml").touch()
    (folder / "org" / "name.partial").mkdir()
    (folder / "org" / "name.partial" / "openvino_model.xml").touch()
    assert list_models(folder) == ["graph", "org/name", "other"]
    with pytest.raises(ConfigurationError, match="there is no directory"):
        list_models(folder / "none")


def test_models_are_added_replaced_and_removed(folder):
    add_model(folder, "graph", Path("graph"))
    add_model(folder, "o", Path("/x"))
    add_model(folder / "config.json", "o", Path("other"), "permanent")
    assert read_config_list(folder).models == [
        ModelSource(str(folder / "graph"), ("graph",)),
        ModelSource(str(folder / "other"), ("o",), residency=ModelResidency(group="permanent")),
    ]
    remove_model(folder, "graph")
    assert [model.names for model in read_config_list(folder).models] == [("o",)]
    with pytest.raises(ConfigurationError, match="has no model graph"):
        remove_model(folder, "graph")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "graph", "other"]


def test_edited_list_keeps_its_other_members(folder):
    root = {"mediapipe_config_list": [{"name": "graph"}, {"name": "other"}],
            "monitoring": {"metrics": {"enable": True}}}  # fmt: skip
    path = write(folder, root)
    remove_model(path, "other")
    add_model(path, "m", Path("m"))
    found = json.loads(path.read_text())
    assert found["mediapipe_config_list"] == [{"name": "graph"}]
    assert found["monitoring"] == root["monitoring"]
    path.write_text('{"model_config_list": 5}')
    with pytest.raises(ConfigurationError, match="is not a list of models"):
        add_model(path, "m", Path("m"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot read .*config\.json: No such file"),
        (b"{,}", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
    ],
    ids=["missing", "not JSON", "not UTF-8", "too deep"],
)
def test_unreadable_list_is_refused(tmp_path, content: bytes | None, message: str) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=message):
            add_model(path, "a", Path("b"))
    with pytest.raises(ConfigurationError, match=message):
        read_config_list(path)
