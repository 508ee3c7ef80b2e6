"""Converts GGUF files to OpenVINO models (graph, weights and tokenizer) without other libraries.

The graph has the same structure as an export by optimum-intel. This package is independent of the
backends.
"""
