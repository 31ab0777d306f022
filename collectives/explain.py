"""Records of other tools, explained: who holds whom up, and the calls as a Run.

python -m collectives explain fr/ logs/

from collectives.explain import load
hang = load("fr/")         # a Run, as collectives.jobs.load gives of our own records
print(hang.verdict)        # what the command says
"""

from .lazy import lazy

__all__ = lazy(__name__, {"collectives.watch.explain.command": "explain", "collectives.watch.explain.loaded": "load"})
