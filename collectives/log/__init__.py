"""What happened in a run, as plain data, and what can be read off it."""
