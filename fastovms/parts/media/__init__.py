"""Images and documents of requests."""
