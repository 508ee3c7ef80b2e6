"""Converts GGUF files to OpenVINO models (graph, weights and tokenizer) without other libraries.

It reads a file's metadata and tensors and builds the same graph as an export. It is independent of
the backends.
"""
