"""Grades exercises.

For a learner      python -m helpers.grade exercises/02_distributed_mean.ipynb [--watch]
For an instructor  python -m helpers.grade --score --out report/ submissions/
"""

import sys

# nbformat checks notebooks with jsonschema, which loads, where it finds it, a grammar of web addresses.
# No notebook needs that, and it takes as long as torch.
sys.modules.setdefault("rfc3987_syntax", None)
