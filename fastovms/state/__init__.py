"""What outlives a request: responses, their items, conversations. Knows no HTTP and no model."""
