"""The prefix cache on disk: KV cache blocks of prompts that survive a restart."""
