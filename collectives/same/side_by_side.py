"""`same()`: a function on ranks and in one process, and whether both compute the same."""

from typing import Any, Callable

from ..frontend import show
from ..launch.pool import preload
from ..launch.run import run
from ..outcome.errors import RunError
from ..outcome.run import Run
from .compare import beside_one_process
from .comparison_text import text
from .findings import Comparison
from .first_steps import STEPS, FirstSteps, recorded
from .replay import Join

# Modules that a rank would import when it first uses them.
MODULES = (
    "collectives.same.first_steps",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.utils.data",
)
preload(MODULES)


class Same:
    """Whether ranks computed what one process computes: the verdict, and a table of what was compared.

    .verdict: "same", "differs" or "cannot compare".  .comparison: all that was found.
    .run: the ranks' Run.
    """

    def __init__(self, run: Run | None, comparison: Comparison) -> None:
        self.run, self.comparison = run, comparison
        self.verdict, self.reason, self.first = comparison.verdict, comparison.reason, comparison.first

    def __repr__(self) -> str:
        return text(self.comparison)

    def draw(self) -> Any:
        """The Picture of the verdict and the table.  Raises ModuleNotFoundError without matplotlib."""
        from .comparison_picture import draw

        return draw(self.comparison)

    def _ipython_display_(self) -> None:
        show(self.draw(), repr(self))


def same(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    reference: Callable[..., Any] | None = None,
    steps: int = STEPS,
    **options: Any,
) -> Same:
    """Runs `fn(*args)` on every rank, then in one process that gets the data of all, and compares their first steps.

    fn: as for run(): plain torch that knows nothing of this, and does the same job with one rank.
    reference: the function for one process, where fn itself can't run with one rank.
    steps: the number of each parameter's steps that are compared.
    options: run()'s, and keyword arguments of fn.

    Compared are the gradients that optimizers take, the parameters before and after, tensors that fn marks with `note`,
    and, where those differ, modules' outputs.  One process gets all rows that ranks drew
    with torch.randn, rand, randint or normal, or got from a DataLoader.  An unseeded rank draws different numbers than its neighbors.  Dropout is off.
    Raises what run() raises for fn on ranks; ValueError for steps below 1.
    """
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, not {steps}: something has to be compared.")
    many = run(recorded(fn, steps=steps), *args, world_size=world_size, **options)
    records: list[FirstSteps] = many.results
    feeds = [record.feed for record in records]

    def alone(join: Join, shaken: int) -> FirstSteps | str:
        single = recorded(reference or fn, feeds, steps, join=join, shaken=shaken)
        try:
            return run(single, *args, world_size=1, **options).results[0]
        except RunError as failed:
            why = str(failed).strip().splitlines()
            reason = f"one process fails: {why[0] if why else failed}"
            return f"{reason}. Pass a function that does the job in one process as `reference`"

    return Same(many, beside_one_process(records, alone))
