"""Speech synthesis: audio from text."""
