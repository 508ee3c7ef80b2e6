"""Load of which no request may be lost: for a long time, across restarts, and beside busy
processes."""
