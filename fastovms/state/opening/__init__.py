"""Opens the store that the operator chose."""
