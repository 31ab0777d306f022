"""Several hosts on one machine, with a wire between them: `with Hosts(2) as hosts: jobs.run(fn, hosts)`.

They are Linux's own means of making a machine look like several: each host has its own network interfaces, host
name, processes and /etc/hosts, and shares the files, the processor and the clock with the others.  See network.py.
"""

import argparse
import errno
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from ..launch.wire import Place
from ..launch.work import LOOPBACK

MTU_BYTES = 16000  # large packets: the wire handles each one in Python
END_SECONDS = 5.0  # for the wire to end by itself
MAX_HOSTS = 64
KINDS = ("user", "net", "uts", "mnt")  # of namespaces that a rank enters; user first: it grants the right to the others
FOLDER = Path(__file__).parent
NOTE = "The rest of this page can be read with the outputs that are stored in it."
CONTAINER = (
    "Inside a container, start the container with --security-opt seccomp=unconfined --device /dev/net/tun; on Ubuntu "
    "23.10 or newer, `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0` allows it until the next start."
)
NO_TUN = "this system has no /dev/net/tun that this user may open, and hosts are connected by it"
NO_NAMESPACES = "this system does not let this user make network namespaces, of which hosts are made"


class HostsUnavailable(RuntimeError):
    """This machine cannot pretend to be several. The message has the reason and the remedy."""


class Hosts(AbstractContextManager):
    """Several hosts on this machine.  They exist from here on until close(), or until this process ends.

    count: number of hosts, 1 to 64, named host0, host1, ... at 10.77.0.1, 10.77.0.2, ...
    latency: seconds that a packet takes from one host to another.
    bandwidth: bytes/s that a host can send, and that it can receive at the same time.

    Raises HostsUnavailable, with a remedy, if the system does not allow it.

    A rank function may use a Hosts of the notebook, for example to unplug a cable in the middle of a run.
    """

    def __init__(self, count: int = 2, latency: float = 1e-3, bandwidth: float = 125e6) -> None:
        _check(count, latency, bandwidth)
        if sys.platform != "linux":
            raise HostsUnavailable(f"hosts are made of Linux's namespaces, and this is {platform.system()}. {NOTE}")
        self.count = count
        self.names = [f"host{host}" for host in range(count)]
        self.addresses = [f"10.77.0.{host + 1}" for host in range(count)]
        self.interface = "eth0"
        self._folder = Path(tempfile.mkdtemp(prefix="hosts-"))
        everyone = "".join(f"{a} {n}\n" for a, n in zip(self.addresses, self.names))
        for host in range(count):
            self.write_etc_hosts(host, "127.0.0.1 localhost\n" + everyone)
            (self._folder / f"host{host}.resolv.conf").write_text("options timeout:1 attempts:1\n")
        settings = map(str, (count, latency, bandwidth, MTU_BYTES, self._folder))
        self._wire = subprocess.Popen(
            [sys.executable, "-I", str(FOLDER / "network.py"), *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Jupyter's interrupts go to the kernel's group
        )
        self._started: list[subprocess.Popen] = []
        self._close = weakref.finalize(self, _end, self._wire, self._folder, self._started)
        said = json.loads(self._wire.stdout.readline() or '{"errno": 0, "what": "the wire ended"}')
        if "errno" in said:
            self.close()
            raise HostsUnavailable(_reason(said["errno"], said["what"]))
        self._ones = said["hosts"]  # process 1 of each host, as seen from here
        self._namespaces = [tuple(f"/proc/{one}/ns/{kind}" for kind in KINDS) for one in self._ones]

    def places(self, world_size: int) -> list[Place]:
        """A host for each of world_size ranks: consecutive ranks on each, spread evenly."""
        host_of = [rank * self.count // world_size for rank in range(world_size)]
        places = []
        for rank, host in enumerate(host_of):
            environ = dict(
                LOCAL_RANK=str(host_of[:rank].count(host)), LOCAL_WORLD_SIZE=str(host_of.count(host)),
                GROUP_RANK=str(host), GROUP_WORLD_SIZE=str(self.count), GLOO_SOCKET_IFNAME=self.interface,
            )  # fmt: skip
            places.append(Place(self._namespaces[host], environ))
        return places

    def start(self, host: int, command: list[str], **options: Any) -> subprocess.Popen:
        """A process on a host.  options: as subprocess.Popen has them."""
        enter = [sys.executable, "-I", str(FOLDER / "enter.py"), str(self._ones[host])]
        self._started.append(subprocess.Popen([*enter, *command], **options))
        return self._started[-1]

    # Faults of hosts, and changes.

    def unplug(self, host: int) -> None:
        """Pull a host's cable: no packet goes in or out, and no process is notified."""
        self._tell("plug", host, False)

    def plug(self, host: int) -> None:
        """Put a host's cable back."""
        self._tell("plug", host, True)

    def end(self, host: int) -> None:
        """Switch a host off: everything that was started on it with start() is killed, without notice to anyone."""
        self.unplug(host)
        self._tell("end", host)

    def speed(self, latency: float, bandwidth: float) -> None:
        """Change the wire: seconds, and bytes/s."""
        _check(self.count, latency, bandwidth)
        self._tell("speed", latency, bandwidth)

    def write_etc_hosts(self, host: int, text: str) -> None:
        """Replace the file that resolves names on a host."""
        (self._folder / f"host{host}.hosts").write_text(text)

    @property
    def sent(self) -> list[list[int]]:
        """Bytes that went over the wire since the start, by source and target host; headers included."""
        return self._tell("sent")

    def _tell(self, *command: Any) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            try:
                control.connect(str(self._folder / "control"))
                control.send(json.dumps(command).encode())
                return json.loads(control.recv(1 << 16))
            except (FileNotFoundError, ConnectionError):
                raise RuntimeError("these hosts are closed: make new ones.") from None

    # Their end.

    def close(self) -> None:
        """Remove the hosts, and end everything that runs on them."""
        self._close()

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:  # a rank may use the hosts, but must not close them
        mine = ("_wire", "_close", "_started")
        return {name: value for name, value in self.__dict__.items() if name not in mine} | {"_close": _not_yours}


class NoHosts(Hosts):
    """A substitute for Hosts where they are unavailable: ranks numbered as on hosts, on this machine, without a wire.

    Cables cannot be pulled here, and nothing is counted.
    """

    def __init__(self, count: int = 2) -> None:
        self.count, self.names = count, [platform.node() or "localhost"] * count
        self.addresses = ["127.0.0.1"] * count
        self.interface = LOOPBACK
        self._namespaces = [()] * count

    def start(self, host: int, command: list[str], **options: Any) -> subprocess.Popen:
        return subprocess.Popen(command, **options)

    def close(self) -> None: ...

    def _tell(self, *command: Any) -> Any:
        return [[0] * self.count for _ in range(self.count)]


def _not_yours() -> None:
    raise RuntimeError("only the program that made the hosts can close them.")


def _end(wire: subprocess.Popen, folder: Path, started: list[subprocess.Popen]) -> None:
    wire.stdin.close()
    wire.stdout.close()
    try:
        wire.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        wire.kill()
        wire.wait()
    for process in started:
        process.wait()  # it ended with its host
    shutil.rmtree(folder, ignore_errors=True)


def _check(count: Any, latency: float, bandwidth: float) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_HOSTS:
        raise ValueError(f"count is a number of hosts from 1 to {MAX_HOSTS}, not {count!r}.")
    if not latency >= 0 or not bandwidth > 0:
        raise ValueError(
            f"latency is 0 seconds or more and bandwidth more than 0 bytes/s, not {latency} and {bandwidth}."
        )


def _reason(number: int, what: str) -> str:
    reason = NO_TUN if "tun" in what or number == errno.ENODEV else NO_NAMESPACES
    error = f"{what}: {os.strerror(number)}" if number else what
    return f"{reason} ({error}). {CONTAINER} {NOTE}"


# --- as a command ---------------------------------------------------------------------------


def main() -> None:
    """`python -m collectives hosts`: a shell on host0. `... -- COMMAND`: a command on every host, then the end."""
    parser = argparse.ArgumentParser("python -m collectives hosts", description="Hosts made of namespaces.")
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--latency", type=float, default=1e-3, metavar="SECONDS", help="one way (%(default)s)")
    parser.add_argument("--bandwidth", type=float, default=125e6, metavar="BYTES/S", help="of each (%(default)g)")
    parser.add_argument(
        "command", nargs="*", help="for every host; {host} in it is the host's number, {hosts} how many"
    )
    given = parser.parse_args()
    try:
        hosts = Hosts(given.hosts, given.latency, given.bandwidth)
    except (HostsUnavailable, ValueError) as error:
        sys.exit(str(error))
    with ThreadPoolExecutor(hosts.count) as threads, hosts:
        if given.command:
            codes = list(threads.map(partial(_on_one, hosts, given.command), range(hosts.count)))
            sys.exit(next(filter(None, codes), 0))
        sys.exit(_shell(hosts))


def _shell(hosts: Hosts) -> int:
    enter = f"{sys.executable} -I {FOLDER / 'enter.py'}"
    print("A shell on host0; `exit` removes the hosts. From another terminal of this machine:")
    for name, address, one in zip(hosts.names, hosts.addresses, hosts._ones):
        print(f"  {name}  {address}   {enter} {one} bash")
    return hosts.start(0, [os.environ.get("SHELL", "/bin/sh")]).wait()


def _on_one(hosts: Hosts, command: list[str], host: int) -> int:
    """Run a command on a host and print what it prints. Return its exit code."""
    words = [word.replace("{host}", str(host)).replace("{hosts}", str(hosts.count)) for word in command]
    with hosts.start(host, words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            print(f"{hosts.names[host]}| {line}", end="", flush=True)
    return process.returncode


if __name__ == "__main__":
    main()
