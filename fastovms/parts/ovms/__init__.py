"""Reads and writes the files of OpenVINO Model Server: graphs, config lists, plugin settings.

Their contents become settings of this server (`graph`, `config_list`, `plugin_config`). The package
does not look for models or parse flags.
"""

from typing import Final

GRAPH_FILE: Final = "graph.pbtxt"
MODEL_FILES: Final = (
    *("openvino_model.xml", "openvino_language_model.xml", "openvino_decoder_model.xml"),
    "model_index.json",
)
"""The files of which one is in the directory of a model."""
