"""Grades exercises, yours or a class's: `python -m helpers.grade exercises/02_distributed_mean.ipynb` (package `grader`)."""

import sys

from grader.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
