"""GGUF files made into OpenVINO models: graph, weights and tokenizer, by no other library."""
