"""The trainer of notebooks/trainer: its grid of meshes (meshes.py), and a copy with a learner's functions (swap.py)."""
