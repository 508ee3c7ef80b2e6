"""`fastovms bench`: sends load to an OpenAI-compatible server and reports its performance."""
