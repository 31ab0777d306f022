"""run() in real Jupyter kernels: what a notebook defines, interrupts, restarts, kills, neighbours."""

import asyncio

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from collectives.frontend import STATUS
from tests.kernels import SETUP, kernels
from tests.sampling import slow
from tools.contents import Contents


@pytest.fixture(scope="module")
def kernel():
    with kernels(1) as (one,):
        one.run(SETUP)
        yield one


@pytest.mark.slow
def test_what_a_notebook_defines_travels(kernel):
    kernel.run("class Pair:\n    def __init__(self, a): self.a = a\ndef double(x): return 2 * x\nk = 5")
    kernel.run("torch.ones(1, requires_grad=True).sum().backward()")
    code = "done = run(lambda: Pair(double(k) + dist.get_rank()), world_size=3); print([(type(p) is Pair, p.a) for p in done.results])"
    assert kernel.text(code) == "[(True, 10), (True, 11), (True, 12)]\n"


def test_the_last_expression_shows_its_picture_and_folded_table_in_one_output(kernel):
    code = """
def share():
    x = torch.arange(3.) if dist.get_rank() == 0 else torch.zeros(3)
    dist.broadcast(x, src=0)
    print("got", x.tolist())
    return x
run(share)"""
    printed, (kind, shown) = kernel.run(code)
    assert printed == ("stdout", "".join(f"[{r}] got [0.0, 1.0, 2.0]\n" for r in range(4)))
    picture, folded, table = shown["text/html"].partition("<details>")
    assert kind == "display_data" and "<img " in picture and "Picture: broadcast" in picture and folded
    assert shown["text/plain"].splitlines()[-1] == "  3      0 0 0   ->  0 1 2" and "0 0 0" in table


def test_a_failure_shows_our_words_and_no_launcher(kernel):
    (error,) = kernel.run("def f():\n    if dist.get_rank() == 2:\n        raise KeyError('lost')\nrun(f)")
    assert error[1]["traceback"] == [
        "RankFailed: rank 2 raised KeyError: 'lost'",
        "    f, line 3:  raise KeyError('lost')",
    ]


def test_a_bad_argument_shows_our_words_and_no_launcher(kernel):
    for code, said in (
        ("run(lambda: 1, world_size='four')", "TypeError: world_size is a number of processes, a whole number like 4"),
        ("run(lambda: 1, world_size=0)", "ValueError: world_size must be from 1 to 256, not 0"),
        ("run('share')", "TypeError: run() needs a function to run on every rank"),
        ("run(lambda x: 1, __import__('threading').Lock())", "TypeError: argument 1"),
    ):
        ((kind, error),) = kernel.run(code)
        assert kind == "error" and error["traceback"][0].startswith(said) and len(error["traceback"]) == 1


def test_a_function_that_was_called_instead_of_passed_is_noticed(kernel):
    kernel.run("def train(): dist.all_reduce(torch.ones(1))")
    (kind, error), (_, said) = kernel.run("run(train())")
    assert (
        kind == "error"
        and error["ename"] == "ValueError"
        and "Pass the function without calling it: run(train)" in said
    )
    assert len(kernel.run("train()")) == 1  # not about run()


LONG = """
def until(end):
    dist.barrier()
    while not (time.sleep(0.01) or os.path.exists(end)):
        pass

def some_time():
    time.sleep(2.5)  # longer than a run says nothing
"""


def test_a_run_that_takes_its_time_says_what_the_ranks_do(kernel, tmp_path):
    kernel.run(LONG)
    end = tmp_path / "end"
    kernel.start(f"end = {str(end)!r}\ndone = run(until, end, world_size=2)")
    said, state = [], "busy"
    while state != "idle":
        message = kernel.client.get_iopub_msg(timeout=60)
        state = message["content"].get("execution_state")
        if message["msg_type"] in ("display_data", "update_display_data"):
            said.append(message["content"])
            if "2 ranks running until: after barrier #1 (line 2) ..." in message["content"]["data"]["text/plain"]:
                end.touch()
    assert end.exists() and said[-1]["data"] == {"text/plain": "", "text/html": ""}
    for content in said[:-1]:  # a line that nobody repeats disappears: a kernel that is restarted can't take its away
        assert "collectives-gone" in content["data"]["text/html"] and content["metadata"] == STATUS
    assert len({content["transient"]["display_id"] for content in said}) == 1


def test_a_status_line_is_not_saved(tmp_path):
    outputs = [new_output("display_data", {"text/plain": word}, metadata=STATUS if word == "busy" else {}) for word in ("busy", "done")]
    notebook = new_notebook(cells=[new_code_cell("run(until)", outputs=outputs)])
    model = {"type": "notebook", "format": "json", "content": notebook}
    asyncio.run(Contents(root_dir=str(tmp_path)).save(model, "a.ipynb"))
    (cell,) = nbformat.read(tmp_path / "a.ipynb", as_version=4).cells
    assert [output.data["text/plain"] for output in cell.outputs] == ["done"]


def test_a_program_that_executes_a_notebook_is_told_nothing_of_it(kernel):
    kernel.run(LONG)
    number = kernel.client.execute("done = run(some_time, world_size=2)", allow_stdin=False)
    assert kernel.finish(number) == []


def test_a_hang_shows_who_waits_for_whom(kernel):
    picture, error = kernel.run("run(lambda: dist.get_rank() and dist.all_reduce(torch.ones(1)), world_size=3)")
    assert picture[0] == "display_data" and "<img " in picture[1]["text/html"]
    assert picture[1]["text/plain"] == "Picture: who waits for whom: 1 waits for 0; 2 waits for 0"
    assert error[1]["traceback"][0].startswith("Stuck: ranks 1 and 2 are waiting in all_reduce #1; rank 0 returned")


def test_output_goes_to_the_cell_that_ran(kernel):
    first = kernel.start("run(lambda: print('one'), world_size=2) and None")
    second = kernel.start("run(lambda: print('two'), world_size=2) and None")
    assert kernel.finish(first) == [("stdout", "[0] one\n[1] one\n")]
    assert kernel.finish(second) == [("stdout", "[0] two\n[1] two\n")]


def test_interrupt_ends_the_run_and_the_kernel_goes_on(kernel, tmp_path):
    mark = tmp_path / "mark"
    number = kernel.start(
        f"mark = {str(mark)!r}\ndef hang():\n    print('on my way')\n"
        "    while True: os.close(os.open(mark + str(dist.get_rank()), os.O_CREAT))\nrun(hang, world_size=2)"
    )
    kernel.until(lambda: len(list(tmp_path.iterdir())) == 2)
    running = kernel.ranks()
    kernel.manager.interrupt_kernel()
    outputs = kernel.finish(number)
    assert outputs[0] == ("stdout", "[0] on my way\n[1] on my way\n")
    assert outputs[-1][0] == "error" and outputs[-1][1]["traceback"] == [
        "KeyboardInterrupt: interrupted. The ranks were here:",
        "  ranks 0 and 1  running your code, before any call  "
        "hang, line 4:  while True: os.close(os.open(mark + str(dist.get_rank()), os.O_CREAT))",
    ]
    kernel.until(lambda: sum(p.is_running() and p.cpu_times().user > 0.5 for p in running if p.is_running()) == 0)
    assert kernel.text("print(run(lambda: 1, world_size=2).results)") == "[1, 1]\n"


@pytest.mark.parametrize("how", slow("kill", "restart", "server"))
def test_no_rank_outlives_its_kernel(how, tmp_path):
    with kernels(1) as (kernel,):
        kernel.run(SETUP)
        kernel.run("run(lambda: 1, world_size=2)")  # a worker group on standby, too
        number = kernel.start(
            f"run(lambda: os.mkdir({str(tmp_path)!r} + '/' + str(dist.get_rank())) or time.sleep(1000))"
        )
        kernel.until(lambda: len(list(tmp_path.iterdir())) == 4)
        everyone = kernel.process.children(recursive=True)
        if how == "kill":
            kernel.process.kill()
        elif how == "restart":
            kernel.manager.restart_kernel(now=True)
        else:
            kernel.process.children()[0].kill()
            outputs = kernel.finish(number)
            assert outputs[-1][1]["ename"] == "ServerLost" and "Run the cell again" in outputs[-1][1]["evalue"]
            assert kernel.text("print(run(lambda: 1, world_size=2).results)") == "[1, 1]\n"
        kernel.until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in everyone))


@pytest.mark.slow
def test_two_kernels_do_not_disturb_each_other():
    with kernels(2) as both:
        code = "x = torch.ones(1) * {k}\nprint(run(lambda: (dist.all_reduce(x), x.item())[1], world_size=3).results)"
        for kernel in both:
            kernel.run(SETUP)
        started = [[k.start(code.format(k=n)) for _ in range(5)] for n, k in enumerate(both)]
        for n, k in enumerate(both):
            for number in started[n]:
                assert k.finish(number) == [("stdout", f"{[3.0 * n] * 3}\n")]
