"""Makes the environment for `make lab` and `make test`, unless it is there already.

    python3 -I tools/install.py .venv https://download.pytorch.org/whl/cpu

Runs before anything is installed: standard library only, and no syntax that an old Python would trip over before it can
report that it is too old.  Nothing else imports this file.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 10)


def main(venv, torch_index):
    python, stamp = os.path.join(venv, "bin", "python"), os.path.join(venv, "made-from")
    if os.path.exists(python) and is_made_from(stamp, sources()):
        return
    if sys.platform == "win32":
        stop("The course needs Linux or macOS.", "On Windows, install WSL2 (`wsl --install`) and work inside it.")
    if not can_make_environments(sys.executable):
        hand_over(venv, torch_index)
    wait_for_others(venv)
    if os.path.exists(python) and is_made_from(stamp, sources()):
        return
    if not os.path.exists(python):  # none yet, or the Python it was made with is gone
        print("Making the environment in %s with Python %s." % (venv, sys.version.split()[0]), flush=True)
        print("This downloads about 300 MB, once, and takes a few minutes.\n", flush=True)
        call(
            [sys.executable, "-m", "venv", "--clear", venv],
            "Python could not make a virtual environment in %s." % venv,
            "Is there space on the disk, and may you write there? `make VENV=/another/folder ...` puts it elsewhere.",
        )
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "-c", "constraints.txt"]
    if torch_index and sys.platform == "linux":
        take_cpu_torch(pip, torch_index)
    call(
        pip + ["-e", ".[course,test]"],
        "pip could not install the packages; its own words are above.",
        "No network? Behind a proxy? Set https_proxy, or tell pip about your index (`pip config`).\n"
        "No space left? The packages need 2 GB.\n"
        "No matching distribution for torch? PyTorch has no build for this Python or machine (Macs with an\n"
        "Intel chip, 32-bit systems): see the conda route in INSTALL.md.\n"
        "Once that is fixed, give the same command again: it continues where it stopped.",
    )
    with open(stamp, "w") as f:
        f.write(sources())


def sources():
    """A digest of everything the environment depends on: if it changes, the environment is brought up to date."""
    digest = hashlib.sha256(ROOT.encode())  # a copied or moved folder still points to the old one
    for name in ("pyproject.toml", "constraints.txt"):
        with open(name, "rb") as f:
            digest.update(f.read())
    return digest.hexdigest()


def is_made_from(stamp, wanted):
    try:
        with open(stamp) as f:
            return f.read() == wanted
    except OSError:
        return False


def can_make_environments(python):
    # Asked of the program itself: Debian ships venv without ensurepip, pyenv has shims that only fail.
    question = "import sys, venv, ensurepip; sys.exit(sys.version_info < %r)" % (OLDEST,)
    try:
        return subprocess.call([python, "-c", question], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def hand_over(*arguments):
    """Starts again under a Python that will do, if this machine has one."""
    for minor in (13, 12, 11, 10, 14):
        other = shutil.which("python3.%d" % minor)
        if other and can_make_environments(other):
            os.execv(other, [other, "-I", os.path.abspath(__file__)] + list(arguments))
    version = "%d.%d" % sys.version_info[:2]
    if sys.version_info < OLDEST:
        stop(
            "The course needs Python 3.10 or newer; %s is Python %s." % (sys.executable, version),
            "Install a newer one (python.org, `brew install python`, `apt install python3`), and name it if\n"
            "it is not found by itself: make lab PYTHON=/path/to/python3.12",
        )
    stop(
        "Python %s cannot make virtual environments: its venv or ensurepip module is missing." % version,
        "On Debian and Ubuntu: sudo apt install python3-venv",
    )


def wait_for_others(venv):
    """Returns when no other `make` works on the environment; until this process ends, others wait for it."""
    import fcntl  # not on Windows, which got its answer before

    try:
        os.makedirs(venv, exist_ok=True)
        folder = os.open(venv, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another make is making the environment in %s: waiting for it." % venv, flush=True)
            fcntl.flock(folder, fcntl.LOCK_EX)
    except OSError:  # a disk without locks; or a folder that can't be made, which is reported when it is needed
        pass


def take_cpu_torch(pip, index):
    """The CPU build of torch: pip's usual one for Linux is for CUDA, and gigabytes larger.

    Only torch comes from there, everything else from pip's configured index.  When
    this fails, nothing is lost: the next step takes torch from pip's own index.
    """
    try:
        urllib.request.urlopen(urllib.request.Request(index + "/torch/", method="HEAD"), timeout=5).close()
    except Exception as error:  # no network, a proxy's odd answer, an address mistyped: all the same here
        print("%s does not answer (%s)." % (index, error))
    else:
        if quietly(pip + ["--no-deps", "--index-url", index, "torch"]) == 0:
            return
    print("Taking torch from pip's own index, which may hold the much larger CUDA build.", flush=True)


def call(command, what, remedy):
    if quietly(command) != 0:
        stop(what, remedy)


def quietly(command):
    """The exit status of a command; in a terminal, only the last line of its output is shown. Errors stay."""
    if not sys.stdout.isatty():
        return subprocess.call(command)
    program = subprocess.Popen(command, stdout=subprocess.PIPE, universal_newlines=True)
    wide = shutil.get_terminal_size().columns - 1
    for line in program.stdout:
        sys.stdout.write("\r" + line.strip()[:wide].ljust(wide))
        sys.stdout.flush()
    sys.stdout.write("\r" + " " * wide + "\r")
    return program.wait()


def stop(what, remedy):
    sys.exit("\n%s\n\nWhat to do\n%s\n" % (what, remedy))


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("\nStopped. The same command goes on where this one was.")
