"""How the built-in demo model is made: corpus, training, export and evaluation."""
