"""LoRA adapters: their files, their weights in memory, and model steps that apply them."""
