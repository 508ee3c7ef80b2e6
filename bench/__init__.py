"""Benchmarks of the server and their helpers. Run each as a module from the repository's root."""
