"""Image generation and editing models, which run in a separate process."""
