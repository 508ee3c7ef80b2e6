"""Reads and writes OpenVINO Model Server's files: graphs, model lists and plugin configurations.

Their contents become settings of this server (`graph`, `config_list`, `plugin_config`). The package
does not search for models or parse flags.
"""

from typing import Final

GRAPH_FILE: Final = "graph.pbtxt"
MODEL_FILES: Final = (
    *("openvino_model.xml", "openvino_language_model.xml", "openvino_decoder_model.xml"),
    "model_index.json",
)
"""The graph files of models; a model's directory has one of them."""
