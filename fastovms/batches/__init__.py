"""Runs batches: every line of a file is a request, which the handlers of the server answer, at the
lowest priority; what has been done outlives the process."""
