"""Records are there whole or not at all."""

from __future__ import annotations

import msgspec
import pytest

from fastovms.files.record_folder import RecordFolder


class Note(msgspec.Struct):
    text: str


def test_records_outlive_the_process(tmp_path) -> None:
    folder = RecordFolder(tmp_path / "notes", Note)
    folder.write("a", Note("1"))
    folder.write("b", Note("2"))
    folder.write("a", Note("3"))
    folder.delete("b")
    folder.delete("b")
    assert list(RecordFolder(tmp_path / "notes", Note).read_all()) == [Note("3")]
    assert (tmp_path / "notes" / "a.json").stat().st_mode & 0o777 == 0o600


def test_one_that_is_damaged_is_passed_over(tmp_path, caplog) -> None:
    folder = RecordFolder(tmp_path, Note)
    folder.write("a", Note("1"))
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.new").write_text("half of")
    assert list(folder.read_all()) == [Note("1")]
    assert folder.ids() == {"a", "b"}
    assert "b.json cannot be read" in caplog.text


def test_a_disk_that_fails_leaves_the_old_one(tmp_path, monkeypatch) -> None:
    folder = RecordFolder(tmp_path, Note)
    folder.write("a", Note("1"))

    def fail(descriptor: int) -> None:
        raise OSError("broken")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="broken"):
        folder.write("a", Note("2"))
    assert list(folder.read_all()) == [Note("1")]
    folder.delete("a")
    assert not list(tmp_path.iterdir())
