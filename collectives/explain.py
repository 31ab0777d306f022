"""Records of other tools, explained: which rank holds up which, and the calls as a Run.

python -m collectives explain fr/ logs/

from collectives.explain import load
hang = load("fr/")         # a Run, as collectives.jobs.load returns for our own records
print(hang.verdict)        # the command's report
"""

from .lazy import lazy

__all__ = lazy(__name__, {"collectives.watch.explain.command": "explain", "collectives.watch.explain.loaded": "load"})

if __name__ == "__main__":  # python -m collectives.explain
    from .watch.explain.command import main

    main()
