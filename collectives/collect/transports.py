"""The ways to run a command on a host: each makes an argument list from a host and a command of the shell."""

from typing import Callable

TRANSPORTS: dict[str, Callable[[str, str], list[str]]] = {
    "local": lambda host, command: ["sh", "-c", command],
    "ssh": lambda host, command: ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host, command],
    "srun": lambda host, command: ["srun", "--overlap", "-N1", "-n1", "-w", host, "sh", "-c", command],
    "pdsh": lambda host, command: ["pdsh", "-N", "-w", host, command],
    "kubectl": lambda host, command: ["kubectl", "exec", host, "--", "sh", "-c", command],
}
