"""The judge of a run: from its messages to a verdict, and the verdict in words. No input or output here."""
