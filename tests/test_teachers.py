"""What teachers make for a class: exercises without hints, and a tally of predictions."""

import json

import nbformat
import pytest

from helpers.course import EXERCISES
from helpers.exercise.notebook import is_answer, is_check
from helpers.progress import predicted
from tools import release, tally


@pytest.mark.slow
def test_a_handout_is_the_exercises_without_hints(tmp_path, capsys):
    assert release.main(["--handout"]) == 2 and "Name a folder" in capsys.readouterr().err
    assert release.main(["--handout", str(tmp_path / "class" / "hw")]) == 0
    made = sorted((tmp_path / "class" / "hw").glob("*.ipynb"))
    assert [path.name for path in made] == sorted(path.name for path in EXERCISES.glob("*.ipynb"))
    for path in made:
        whole, short = (nbformat.read(folder / path.name, as_version=4) for folder in (EXERCISES, path.parent))
        kept = {cell.id: cell.source for cell in short.cells}
        hinted = [cell for cell in whole.cells if "<summary>Hint" in cell.source]
        assert hinted and not any("Hint" in source for source in kept.values()), path.name
        assert all(kept[cell.id] == cell.source for cell in whole.cells if cell not in hinted)
        assert sum(map(is_answer, short.cells)) and sum(map(is_check, short.cells))
        for cell in hinted:  # what isn't a hint stays
            assert kept.get(cell.id, "") == cell.source.partition("## Hints")[0].partition("<details>")[0].rstrip()


@pytest.mark.slow
def test_work_in_a_handout_is_left_alone(tmp_path, capsys):
    release.main(["--handout", str(tmp_path)])
    path = tmp_path / "02_distributed_mean.ipynb"
    notebook = json.loads(path.read_text())
    next(cell for cell in notebook["cells"] if is_answer(nbformat.from_dict(cell)))["source"] = "mine = 1"
    path.write_text(json.dumps(notebook))
    assert release.main(["--handout", str(tmp_path)]) == 1 and "mine = 1" in path.read_text()
    assert "02_distributed_mean.ipynb: left alone" in capsys.readouterr().err


def test_a_tally_has_the_worst_predictions_first(tmp_path, capsys):
    ann, bob, cut = (tmp_path / f"{name}.json" for name in ("ann", "bob", "cut"))
    for file, swap in ((ann, 0), (bob, 1)):
        predicted("03_x, share", "How many?", 1, 1, file)
        predicted("03_x, swap", "How does it end?\x1b[2J", swap, 1, file)
    predicted("03_x, swap", "How does it end?\x1b[2J", 1, 1, ann)  # a second try doesn't count
    cut.write_text('{"predictions": {')
    assert tally.main([str(ann), str(bob), str(cut)]) == 0
    printed = capsys.readouterr()
    assert [line.split() for line in printed.out.splitlines()] == [
        ["made", "right", "at", "first", "prediction"],
        ["2", "1", "03_x,", "swap:", "How", "does", "it", "end??[2J"],
        ["2", "2", "03_x,", "share:", "How", "many?"],
    ] and "cut.json: no predictions" in printed.err
    assert tally.main([]) == 2
