"""What a model's weights are, by its graphs."""

from __future__ import annotations

from pathlib import Path

from fastovms.backends.model_files.weight_count import count_weights
from fastovms.params import WeightCount
from tests.paths import TINY_VLM

CONSTANT = '<layer type="Const"><data element_type="{}" shape="{}" offset="{}" size="1"/></layer>\n'


def graph(*constants: tuple[str, str, int]) -> str:
    return "".join(CONSTANT.format(*constant) for constant in constants)


def test_shared_constants_and_scales(tmp_path: Path) -> None:
    embedding = ("u8", "100, 8", 0)
    (tmp_path / "openvino_model.xml").write_text(
        graph(
            embedding,
            embedding,
            ("f16", "100, 1", 800),
            ("u4", "10, 4, 256", 1000),
            ("u4", "10, 4, 1", 9000),
            ("f16", "10, 4, 1", 9100),
            ("f32", "1, 1, 8", 9200),
            ("i64", "", 9300),
        )
    )
    (tmp_path / "openvino_tokenizer.xml").write_text(graph(("u8", "99999", 0)))
    assert count_weights(tmp_path) == WeightCount(800 + 10 * 4 * 256 + 8, "u4")


def test_all_graphs_of_a_model_count() -> None:
    found = count_weights(TINY_VLM)
    assert found is not None
    assert found.num_parameters > 250_000
    assert found.element_type in ("i8", "u8")


def test_a_directory_without_graphs(tmp_path: Path) -> None:
    assert count_weights(tmp_path) is None
