"""Workers on other machines: engines of ipyparallel, each of which has the course and a sandbox of its own.

The files travel to them, and gradings come back. ipyparallel hands the work out, to each engine one piece at a time, and
what an engine was lost over to another one. Whoever starts the engines (by SSH, MPI, Slurm, Kubernetes) is its business.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from .folder import course_version
from .gradebook import Grading
from .workers import TRIES, NoWorker, WorkItem

ASK_SECONDS = 300.0  # for an engine to load torch and to try its sandbox, on a busy machine
LOOK_SECONDS = 0.5  # between two looks whether there is an engine left
AHEAD = 2  # pieces of work under way for each engine: one that it does, and one on its way


class EngineWorkers:
    """The engines of a cluster that can grade, to be closed.

    cluster: the name of a profile of ipyparallel, or the path of a connection file (ipcontroller-client.json).  private:
    as for walls.around, on the engines.  Raises NoWorker if there is no such cluster, or no engine in it that can grade.
    """

    def __init__(self, cluster: str, walls: bool, private: Iterable[Path] = ()) -> None:
        try:
            import ipyparallel
        except ImportError:
            raise NoWorker("ipyparallel is not installed: pip install 'collectives-course[cluster]'.") from None
        where = {"connection_info": cluster} if cluster.endswith(".json") else {"profile": cluster}
        try:
            self._client = ipyparallel.Client(**where)
        except (OSError, TimeoutError, ipyparallel.TimeoutError) as error:
            raise NoWorker(f"There is no ipyparallel cluster at {cluster}: {error}.") from None
        asked = course_version(), walls, [str(path) for path in private]
        answers = {engine: self._client[engine].apply_async(flaw, *asked) for engine in self._client.ids}
        self.flaws = {engine: why for engine, answer in answers.items() if (why := _said(answer))}
        self._fit = [engine for engine in answers if engine not in self.flaws]
        if not self._fit:
            self._client.close()
            reasons = "".join(f"\n  engine {engine}: {why}" for engine, why in self.flaws.items())
            raise NoWorker(f"No engine of {cluster} can grade.{reasons or ' It has none.'}")

    def scored(self, items: Iterator[WorkItem]) -> Iterator[tuple[WorkItem, Grading | None]]:
        """As workers.Workers.scored."""
        view = self._client.load_balanced_view(self._fit)
        view.set_flags(retries=TRIES - 1)
        under_way: dict[Any, WorkItem] = {}
        while True:
            while len(under_way) < AHEAD * len(self._left()) and (item := next(items, None)):
                under_way[self._given(view, item)] = item
            if not under_way:
                return
            wait(under_way, LOOK_SECONDS, FIRST_COMPLETED)
            for answer in [answer for answer in under_way if answer.ready()]:
                item = under_way.pop(answer)
                yield item, Grading.from_data(answer.get()) if answer.successful() else None
                self._client.purge_local_results(answer)

    def _given(self, view: Any, item: WorkItem) -> Any:
        """The answer to come of the engine that gets a piece of work, of those that are not lost."""
        while True:
            view.targets = self._left()
            with suppress(KeyError):  # one of them is lost this very moment
                return view.apply_async(grade, item.file, item.content, item.seed, item.pictures)

    def _left(self) -> list[int]:
        """The engines that can grade and are not lost. Raises NoWorker if there are none."""
        if left := [engine for engine in self._fit if engine in self._client.ids]:
            return left
        raise NoWorker("All engines are gone.")

    def close(self) -> None:
        self._client.close()


def _said(answer: Any) -> str:
    """What keeps an engine from grading: its own answer, or that it has none."""
    import ipyparallel

    try:
        return answer.get(ASK_SECONDS)
    except (TimeoutError, ipyparallel.TimeoutError):
        return f"it did not answer for {ASK_SECONDS:g} s"
    except Exception as error:  # raised there, of whatever kind
        return f"the course is not installed there, or not the same ({error})"


# --- in an engine ---------------------------------------------------------------------------

_sandboxes: list[Any] = []  # this engine's pool of sandboxes, once it has one


def flaw(version: str, walled: bool, private: list[str]) -> str:
    """The reason why this engine cannot grade; "" if it can, and then it has its sandbox."""
    import torch

    from . import walls
    from .sandbox import SandboxPool

    if course_version() != version:
        return "its course, Python or torch differs from the grader's"
    torch.set_num_threads(1)
    hidden = [path for path in map(Path, private) if path.exists()]
    try:
        if walled:
            walls.check(hidden)
        while _sandboxes:
            _sandboxes.pop().close()
        _sandboxes.append(SandboxPool(walled, hidden))
    except walls.Unavailable as why:
        return f"no sandbox: {why}"
    return ""


def grade(file: str, content: bytes, seed: str, pictures: bool) -> dict[str, Any]:
    """The grading of a file by this engine, as plain data."""
    from .worker import graded

    return graded(file, content, seed, pictures, _sandboxes[0]).data()
