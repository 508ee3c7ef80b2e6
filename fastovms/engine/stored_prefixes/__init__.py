"""Moves blocks of prompts between the KV cache and the disk: which are worth it, and when."""
