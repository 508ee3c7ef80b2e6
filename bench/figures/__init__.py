"""Commands that measure figures, check their limits, and write them into a page."""
