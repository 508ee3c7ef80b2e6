"""Keeps computed blocks of prompts on disk, for the next process: files, their directory, and what
may be written.

It knows bytes only. Which blocks are worth it, and when they are read, is decided by
`engine.stored_prefixes`.
"""
