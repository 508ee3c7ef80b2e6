"""Several models: which of them are loaded, how they are loaded and unloaded."""
