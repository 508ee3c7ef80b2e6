"""Adapters (LoRA): their files, their weights in memory, and steps that use them."""
