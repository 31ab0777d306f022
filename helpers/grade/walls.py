"""The walls of the sandbox: bubblewrap with the least that Python and torch can live on, and whether they hold here.

Inside there is Python, torch and the folder `inside`, all of it read-only; no place to write, no network, no other
process to be seen, no solution, test or submission.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .inside import seccomp

INSIDE = Path(__file__).parent / "inside"
TRIAL = """
import os, sys
sys.path.insert(0, "/course")
from inside import seccomp
seccomp.close_in()
try:
    os.fork()
except PermissionError:
    os._exit(0)
os._exit(3)
"""  # ends well only where the walls hold


class Unavailable(RuntimeError):
    """There is no sandbox on this machine. The message says why, and what to do."""


def check() -> None:
    """Raises Unavailable unless submitted code can be walled in here."""
    if sys.platform != "linux":
        raise Unavailable("sandboxes need Linux (bubblewrap). Grade in a Linux container or virtual machine.")
    if not shutil.which("bwrap"):
        raise Unavailable("bubblewrap is not installed (apt-get install bubblewrap, dnf install bubblewrap).")
    if not seccomp.known():
        lacking = "there is no filter for system calls on this kind of processor yet"
        raise Unavailable(f"{lacking}, see helpers/grade/inside/seccomp.py.")
    command = [*around(), "--", sys.executable, "-I", "-B", "-c", TRIAL]
    tried = subprocess.run(command, capture_output=True, text=True, cwd="/")
    if tried.returncode:
        said = tried.stderr.strip().rpartition("\n")[2] or f"exit code {tried.returncode}"
        raise Unavailable(
            f"the sandbox does not hold here ({said}). bubblewrap needs user namespaces: in a container, allow them; "
            "on Ubuntu 24.04 and later, see kernel.apparmor_restrict_unprivileged_userns."
        )


def around() -> list[str]:
    """The beginning of a command whose rest runs inside the walls."""
    visible = [
        *("/usr", "/lib", "/lib64", "/etc/ld.so.cache"),
        sys.base_prefix,
        sys.prefix,
        str(Path(importlib.util.find_spec("torch").origin).parents[1]),
        "/proc/cpuinfo",  # torch chooses its kernels for half precision by these
        *("/sys/devices/system/cpu/possible", "/sys/devices/system/cpu/present"),
        os.path.dirname(os.path.realpath(sys.executable)),
    ]
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    options += ["--cap-drop", "ALL", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
    options += ["--setenv", "PATH", ""]  # else torch for CUDA looks for a compiler, and wants a folder to write to
    for path in dict.fromkeys(visible):
        options += ["--ro-bind-try", path, path]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    return ["bwrap", *options, "--ro-bind", str(INSIDE), "/course/inside", "--remount-ro", "/", "--chdir", "/"]
