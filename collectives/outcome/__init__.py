"""The end of a run: a Run, or the error raised instead."""
