"""The course's own helpers, on the library `collectives`: a chapter's questions, views and checks.

from helpers import run
"""

import os

import collectives
from collectives.lazy import lazy
from collectives.rank.own import pass_on

from . import course
from .progress import follow

# Each module and its names, loaded when one is asked for; what is the library's is the same object there.
__all__ = lazy(
    __name__,
    {
        "collectives": " ".join(collectives.__all__),
        ".views.costs": "costs",
        ".views.explore": "explore",
        ".views.predict.predict": "ask predict",
        ".views.prices": "network_prices",
    },
)

pass_on(os.path.dirname(__file__), course.TASKS, *course.own_exercises())
follow()
