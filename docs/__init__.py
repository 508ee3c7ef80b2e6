"""Programs that make and check the pages."""
