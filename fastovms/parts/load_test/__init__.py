"""Puts load on an OpenAI-compatible server and reports its performance: `fastovms bench`."""
