"""What crashes, power cuts and bad disks do to what the server has promised to keep."""
