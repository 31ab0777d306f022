"""What ranks read of files is counted to the byte, whoever opens them, and an exercise's file is as a real one."""

import io
import json
import pickle

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load

from collectives.train import watch_files
from collectives.train.files import Read, Strip
from helpers.exercise.on_rank import File, content
from helpers.exercise.task import Attempt
from helpers.exercise.tasks import TASKS
from tests.reading import drawn


def piece(path, size):
    """A few bytes, at another place on each rank."""
    with open(path, "rb", buffering=0) as file:
        file.seek(10 * dist.get_rank())
        into = bytearray(size)
        file.readinto(into)
        return bytes(into), file.read(1)


def test_reads_are_counted_to_the_byte(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(100)))
    seen = watch_files(piece, path, 4, world_size=3)
    assert seen.results == [(bytes(range(10 * r, 10 * r + 4)), bytes([10 * r + 4])) for r in range(3)]
    assert seen.bytes == [5] * 3 and seen.requests == [2] * 3 and seen.opened == [["numbers"]] * 3
    assert [r[1:] for r in seen.reads[2]] == [(20, 24), (24, 25)]
    strip = seen.strip({"first": (0, 10)}, stop=50)
    assert strip.parts == [[(0, 5)], [(10, 15)], [(20, 25)]]
    assert "rank 1           5 B in 1 part, from 10 to 15" in repr(strip)


def by_libraries(folder):
    json.loads((folder / "index.json").read_text())
    with open(folder / "index.json", "rb") as file:
        file.read(1)  # below Python's buffer: all of it
    with open(__file__) as other:  # is none of the files asked about
        other.read()
    with open(folder / "new", "w") as new:
        new.write("what is written is not read")
    return torch.load(folder / "w.pt")["w"].sum().item()


def test_whoever_opens_them(tmp_path):
    (tmp_path / "index.json").write_text(json.dumps({"a": 1}))
    torch.save({"w": torch.ones(1000)}, tmp_path / "w.pt")
    seen = watch_files(by_libraries, tmp_path, world_size=1)
    assert seen.results == [1000.0] and seen.opened == [["index.json", "w.pt"]]
    index = [r.stop - r.start for r in seen.reads[0] if r.path.endswith(".json")]
    assert sum(index) == 16 and seen.bytes[0] - 16 >= 4000
    with pytest.raises(ValueError, match="read 2 files"):
        seen.strip()
    with pytest.raises(ValueError, match="give it a path"):
        watch_files(by_libraries, tmp_path / "nowhere", world_size=1)


def test_a_notebooks_own_open_is_counted_too(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    names = {"open": lambda *args, **options: io.open(*args, **options)}  # IPython puts one into each notebook
    exec("def reads(path):\n    with open(path, 'rb', buffering=0) as file:\n        return file.read(3)", names)
    assert watch_files(names["reads"], tmp_path / "x", world_size=1).bytes == [3]


def test_a_strip_draws_what_was_read():
    reads = [[Read("f", 0, 50), Read("f", 50, 60)], [Read("f", 90, 100)]]
    shapes = drawn(Strip(reads, {"weights": (0, 80)}, 0, 100, "load").draw())
    assert {"rank 0", "rank 1", "weights"} <= {word.text for word in shapes.words}


# --- the file of an exercise --------------------------------------------------------------


def test_an_exercises_file_is_as_a_real_one(tmp_path):
    data = bytes(range(50))
    (tmp_path / "real").write_bytes(data)

    def used(file):
        into = bytearray(6)
        said = [file.read(3), file.tell(), file.seek(-4, 2), file.read(9), file.read(9), file.seek(10), file.read(0)]
        said += [file.seek(2, 1), file.readinto(into), into, file.seek(99), file.read(1), file.seek(40), file.readall()]
        said += [file.seekable(), file.readable(), file.writable()]
        with pytest.raises(OSError):
            file.seek(-1)
        file.close()
        with pytest.raises(ValueError):
            file.read(1)
        return said

    mine = File(data)
    with open(tmp_path / "real", "rb", buffering=0) as real:
        assert used(mine) == used(real)
    assert mine.reads[:4] == [3, 4, 0, 6] and content(pickle.loads(pickle.dumps(mine))) == data
    assert pickle.loads(pickle.dumps(mine)).reads == mine.reads


def test_the_traffic_of_an_attempt_knows_its_reads():
    traffic = Attempt([None] * 2, [()] * 2, [[], []], [[8, 100, 20], []]).traffic
    assert traffic.read == [128, 0] and traffic.reads == [3, 0]


def test_the_exercises_file_is_one_that_the_library_reads():
    task = TASKS["load_columns"]
    for case in task.cases:
        given = task.arguments(case)
        files = {content(file) for file, _ in given}
        assert len(files) == 1, "all ranks have the same file"
        matrix = load(files.pop())[given[0][1]]
        assert torch.equal(torch.cat(task.reference(given), dim=1), matrix) and matrix.dtype == case.dtype
