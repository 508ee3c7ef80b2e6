"""What the benchmarks share: processes, properties, reports, and loads."""
