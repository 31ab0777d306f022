"""The log of a run, as plain data, and the facts that follow from it."""
