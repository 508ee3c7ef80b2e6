"""Starts and ends child processes with their parent, bounds their resources, and gives threads deep
stacks.

It does not know what the processes are for.
"""
