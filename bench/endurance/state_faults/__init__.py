"""Crashes, power cuts and faulty disks, after which the server must still have what it has
acknowledged."""
