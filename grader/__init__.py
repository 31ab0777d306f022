"""Grades exercises, for a learner (learner.py) and for an instructor (instructor.py)."""

import sys

# nbformat checks notebooks with jsonschema, which loads, where it finds it, a grammar of web addresses.
# No notebook needs that, and it takes as long as torch.
sys.modules.setdefault("rfc3987_syntax", None)
