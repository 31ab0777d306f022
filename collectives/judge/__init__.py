"""What comes of a run: the Run, or the error with its verdict. No input or output here."""
