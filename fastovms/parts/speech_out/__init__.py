"""Speech of texts."""
