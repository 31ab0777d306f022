"""All that runs inside a rank. Imports plain data, torch and the standard library only."""
