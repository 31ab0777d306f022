"""The ways to run a command on a host: each makes an argument list from a host and a command of the shell."""

import subprocess
from typing import Callable

TRANSPORTS: dict[str, Callable[[str, str], list[str]]] = {
    "local": lambda host, command: ["sh", "-c", command],
    "ssh": lambda host, command: ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host, command],
    # In the job's own allocation, next to the step that hangs: a new one would wait until the job ends.
    "srun": lambda host, command: ["srun", "--overlap", "-N1", "-n1", "-w", host, "sh", "-c", command],
    "pdsh": lambda host, command: ["pdsh", "-N", "-w", host, command],
    "kubectl": lambda host, command: ["kubectl", "exec", host, "--", "sh", "-c", command],
}


def slurm_hosts(job: str) -> list[str]:
    """The hosts of a job of Slurm.  Raises OSError or CalledProcessError if Slurm doesn't answer."""
    listed = _output("squeue", "-h", "-j", job, "-o", "%N").strip()
    return _output("scontrol", "show", "hostnames", listed).split() if listed else []


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
