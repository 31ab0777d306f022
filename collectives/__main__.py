"""The library's command line: `python -m collectives COMMAND ...`, or `collectives COMMAND ...`."""

import sys
from importlib import import_module

from .version import __version__

# command -> the module whose main() runs it, and its line in the help
COMMANDS = {
    "watch": ("watch.__main__", "run a training script under torchrun, record its communication, say why it hangs"),
    "calibrate": (
        "calibrate.calibrate",
        "hold nccl-tests' reports of your cluster against prices, and fit a machine to them",
    ),
    "export": ("remote.export", "make a notebook a program that torchrun starts"),
    "explain": ("watch.explain.command", "say who holds whom up, from what other tools left: dumps, traces, logs"),
    "collect": ("collect.command", "gather stacks, logs, dumps and counters of a hanging job from all its hosts"),
    "steps": (
        "watch.steps.command",
        "say how the ranks of a recorded job spent its training steps, and who held up the others",
    ),
    "plan": ("planner.command", "divide a model over a cluster: memory, seconds, and why other ways lose"),
    "hosts": ("remote.hosts", "make hosts with a network between them on this machine (Linux)"),
}


def main() -> None:
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return
    if name == "--version":
        print(f"collectives {__version__}")
        return
    if name not in COMMANDS:
        sys.exit(f"there is no command {name!r}.\n\n{usage()}")
    sys.argv = [f"collectives {name}", *rest]
    import_module(f".{COMMANDS[name][0]}", __package__).main()


def usage() -> str:
    """The commands, one per line."""
    lines = [f"  {name:<9} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: python -m collectives COMMAND ...",
            "",
            *lines,
            "",
            "COMMAND --help says more, --version which release this is.",
        ]
    )


if __name__ == "__main__":
    main()
