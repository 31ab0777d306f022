"""Grades exercises.

For a learner      python -m helpers.grade exercises/01_distributed_mean.ipynb [--watch]
For an instructor  python -m helpers.grade --score --out report/ submissions/
"""
