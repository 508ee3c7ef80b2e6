"""GGUF files: what they say about themselves, and their conversion to a model's directory."""
