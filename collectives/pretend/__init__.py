"""Ranks that are pretended: an ordinary function called N times over in one process, with a small torch, on Python alone."""
