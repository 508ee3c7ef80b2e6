"""Goes on with responses in the background whose process has ended before they had."""
