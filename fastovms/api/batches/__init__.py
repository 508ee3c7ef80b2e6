"""Answers `/batches`: makes, describes, lists and cancels batches of requests."""
