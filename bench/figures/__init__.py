"""Commands that measure figures, hold them to limits, and write them into a page."""
