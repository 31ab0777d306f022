"""How long each test file takes, and how much of that it computes: `make test ARGS="-p tests.bench.times"`.

What is not computed is waited. CPU time is that of the test's process and of all it started, kernels and ranks too;
it says little of who else was at work meanwhile, so it can be compared between two runs where wall time cannot.
"""

import time
from collections import defaultdict

import psutil
import pytest

SLOWEST = 30


def cpu_seconds() -> float:
    """CPU time of this process and all below it, living or dead."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])  # user, system, and both of the children it has waited for
        except psutil.Error:
            continue
    return total


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    item.config.stash[spent] = time.monotonic(), cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "teardown":
        wall, cpu = item.config.stash[spent]
        report.user_properties.append(("spent", (time.monotonic() - wall, max(0.0, cpu_seconds() - cpu))))
    return report


spent, tests = pytest.StashKey(), []


def pytest_runtest_logreport(report):
    if seconds := dict(report.user_properties).get("spent"):
        tests.append((report.nodeid, *seconds))


def pytest_terminal_summary(terminalreporter):
    if not tests:
        return
    files = defaultdict(lambda: [0, 0.0, 0.0])
    for name, wall, cpu in tests:
        for k, value in enumerate((1, wall, cpu)):
            files[name.partition("::")[0]][k] += value
    write = terminalreporter.write_line
    terminalreporter.section("times")
    write(f"{'tests':>6} {'wall s':>8} {'CPU s':>8}")
    for name, (count, wall, cpu) in sorted(files.items(), key=lambda entry: -entry[1][2]):
        write(f"{count:6} {wall:8.1f} {cpu:8.1f} {name}")
    count, wall, cpu = (sum(column) for column in zip(*files.values()))
    write(f"{count:6} {wall:8.1f} {cpu:8.1f} all")
    terminalreporter.section(f"the {SLOWEST} slowest tests")
    for name, wall, cpu in sorted(tests, key=lambda test: -test[1])[:SLOWEST]:
        write(f"{'':6} {wall:8.1f} {cpu:8.1f} {name}")
