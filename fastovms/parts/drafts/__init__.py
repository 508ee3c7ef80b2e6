"""Speculative decoding: drafts from earlier texts, from a draft model, or from an EAGLE-3 head."""
