"""The Responses API, with its state: responses, their items, conversations, background runs."""
