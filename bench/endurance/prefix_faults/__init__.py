"""What faults of the disk and kill -9 do to prompts that are kept there: never a wrong text."""
