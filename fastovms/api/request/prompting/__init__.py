"""Makes the prompt of a request: from texts, token ids, messages and images to what is computed."""
