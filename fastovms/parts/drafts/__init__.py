"""Speculative decoding: draft tokens from earlier text, a draft model, or a draft head."""
