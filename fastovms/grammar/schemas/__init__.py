"""Changes JSON schemas so that every compiler of grammars reads the same from them."""
