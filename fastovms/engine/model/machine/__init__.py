"""Tells what the machine has for models: devices, memory, its speed, and how caches may be kept."""
