"""Token-level continuous batching over OpenVINO paged attention: integers in, integers out."""
