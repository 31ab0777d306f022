"""Tests of both packages, of the notebooks and of the files around them.

What tests are made of is imported by its full name, as in `from tests.corpus import mistakes`:
pytest puts the folder above this package on the path, and every module has one name only.
Ranks import modules of tests too, so what they need imports little.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
