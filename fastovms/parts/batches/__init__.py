"""Batches: each line of an input file is a request, which the server's handlers answer at the
lowest priority. Finished results survive a restart."""
