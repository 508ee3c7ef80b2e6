"""Decides which tokens are computed next: sequences, blocks of the KV cache, the queue, a step's
plan.

`Scheduler` and `BlockManager` are pure bookkeeping, and `build_batch` lays a plan out for the
model. What becomes of the logits is not known here; a sequence knows its grammar by a Protocol
only.
"""
