"""Puts the same streamed load on several engines in turn, over HTTP and in process."""
