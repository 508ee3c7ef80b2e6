"""Holds the graphs of OpenVINO Model Server for models of each task, without their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fastovms.encoding import Task


class GraphText(NamedTuple):
    """A graph in protobuf's text format.

    Attributes:
        calculator: the name of what runs the model.
    """

    calculator: str
    text: str

    def filled(self, options: str) -> str:
        """Returns the graph with the options of its node, a line each."""
        return self.text % options.replace("\n", "\n      ")


_GENERATION: Final = """\
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node: {
  name: "LLMExecutor"
  calculator: "HttpLLMCalculator"
  input_stream: "LOOPBACK:loopback"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  output_stream: "LOOPBACK:loopback"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  input_stream_info: { tag_index: "LOOPBACK:0", back_edge: true }
  node_options: {
    [type.googleapis.com / mediapipe.LLMCalculatorOptions]: {
      %s
    }
  }
  input_stream_handler {
    input_stream_handler: "SyncSetInputStreamHandler"
    options {
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] { sync_set { tag_index: "LOOPBACK:0" } }
    }
  }
}
"""

_ENCODING: Final = """\
input_stream: "REQUEST_PAYLOAD:input"
output_stream: "RESPONSE_PAYLOAD:output"
node: {
  name: "%(node)s"
  calculator: "%(calculator)s"
  input_side_packet: "%(resources)s"
  input_stream: "REQUEST_PAYLOAD:input"
  output_stream: "RESPONSE_PAYLOAD:output"
  node_options: {
    [type.googleapis.com / mediapipe.%(calculator)sOptions]: {
      %%s
    }
  }
}
"""


def _encoding(node: str, calculator: str, resources: str) -> GraphText:
    names = {"node": node, "calculator": calculator, "resources": resources}
    return GraphText(calculator, _ENCODING % names)


GRAPHS: Final[Mapping[Task, GraphText]] = {
    Task.TEXT_GENERATION: GraphText("HttpLLMCalculator", _GENERATION),
    Task.EMBEDDINGS: _encoding(
        "EmbeddingsExecutor",
        "EmbeddingsCalculatorOV",
        "EMBEDDINGS_NODE_RESOURCES:embeddings_servable",
    ),
    Task.RERANK: _encoding(
        "RerankExecutor", "RerankCalculatorOV", "RERANK_NODE_RESOURCES:rerank_servable"
    ),
}
