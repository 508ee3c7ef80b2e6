"""Answers `/tokenize` and `/detokenize`, in vLLM's form and in OVMS's, with models of any task."""
