"""Applies the same streamed load to several engines in turn, over HTTP and in process."""
