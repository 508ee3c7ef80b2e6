"""Makes OpenVINO models of GGUF files: graph, weights and tokenizer, by no other library.

It reads a file's metadata and tensors and builds the graph that an export would have. It knows no
backend, and nothing of how a model is run or cached.
"""
