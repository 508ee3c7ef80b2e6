"""Models that generate and edit images, which run in a process of their own."""
