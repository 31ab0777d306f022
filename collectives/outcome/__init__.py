"""The end of a run: a Run, or the error in its place."""
