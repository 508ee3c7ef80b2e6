"""Load that no request may be lost of: long, across restarts, and beside busy neighbours."""
