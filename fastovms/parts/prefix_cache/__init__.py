"""Blocks of prompts on disk, which survive a restart."""
