"""Runs batches: every line of a file is a request that the server's handlers answer at the lowest
priority. Finished results survive a restart."""
