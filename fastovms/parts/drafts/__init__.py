"""Speculative decoding: draft tokens from earlier text, from a draft model, or from an EAGLE-3
head."""
