"""The process behind Hosts: a network namespace for each host, and the wire between them.

Each host is a process in its own namespaces, whose end ends everything that runs on the host: it is process
1 of its PID namespace.  Its network interface eth0 is a TUN device: a packet that is sent through it arrives
here, waits as long as a wire with this latency and bandwidth would take, and is written to the interface of the
host that it is for.  When this process ends, by whatever cause, the hosts and all that runs on them end too.

Needs Linux, the right to make user namespaces, and /dev/net/tun; not root.  A separate script: it imports
nothing of this package.
"""

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import time

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x00020000, 0x04000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
PR_SET_TIMERSLACK = 29
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_UP = 0x400454CA, 0x0001, 0x1000, 0x0001
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
SUBNET = "10.77.0."  # host i is .(i + 1)
MAX_PACKETS = 64  # read from one host before the others' turn

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *args) -> None:
    """A function of the C library. Raises OSError with its errno."""
    if getattr(libc, name)(*args) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


# --- hosts --------------------------------------------------------------------------------


def become_root_of_a_namespace() -> None:
    """Give this process all rights in a new user namespace, and none outside that it did not have."""
    user, group = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def start_host(number: int, folder: str, lifeline: tuple[int, int]) -> int:
    """The process id of a new host's process 1.  It ends when the lifeline's writing end is closed."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        said = b""
        try:
            said = _start_host(number, folder, lifeline)
        except OSError as error:
            said = json.dumps([error.errno, str(error)]).encode()
        finally:
            os.write(writing, said)
            os._exit(0)
    os.close(writing)
    said = json.loads(os.read(reading, 1 << 12))
    os.close(reading)
    if isinstance(said, list):
        raise OSError(said[0], said[1])
    return said


def _start_host(number: int, folder: str, lifeline: tuple[int, int]) -> bytes:
    call("unshare", CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWPID)
    socket.sethostname(f"host{number}")
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    for name in ("hosts", "resolv.conf"):
        if os.path.exists(f"/etc/{name}"):
            call("mount", f"{folder}/host{number}.{name}".encode(), f"/etc/{name}".encode(), None, MS_BIND, None)
    pid = os.fork()
    if pid == 0:
        os.closerange(0, lifeline[0])
        os.closerange(lifeline[0] + 1, 1 << 10)
        os.read(lifeline[0], 1)
        os._exit(0)
    return str(pid).encode()


def plug_in(number: int, pid: int, mtu: int) -> int:
    """A TUN descriptor: the other end of the interface eth0 of a host."""
    with open(f"/proc/{pid}/ns/net") as there:
        call("setns", there.fileno(), CLONE_NEWNET)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, _request("eth0", struct.pack("H", IFF_TUN | IFF_NO_PI)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for what, name, data in (
            (SIOCSIFFLAGS, "lo", struct.pack("H", IFF_UP)),
            (SIOCSIFADDR, "eth0", _address(f"{SUBNET}{number + 1}")),
            (SIOCSIFNETMASK, "eth0", _address("255.255.255.0")),
            (SIOCSIFMTU, "eth0", struct.pack("i", mtu)),
            (SIOCSIFFLAGS, "eth0", struct.pack("H", IFF_UP)),
        ):
            fcntl.ioctl(any_socket, what, _request(name, data))
    return tun


def _request(name: str, data: bytes) -> bytes:
    return struct.pack("16s24s", name.encode(), data)


def _address(ip: str) -> bytes:
    return struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(ip))


# --- the wire -----------------------------------------------------------------------------


class Wire:
    """Packets in flight.  latency: seconds, one way.  bandwidth: bytes/s, per host and direction."""

    def __init__(self, tuns: list[int], latency: float, bandwidth: float) -> None:
        self.latency, self.bandwidth = latency, bandwidth
        self.plugged = [True] * len(tuns)
        self.sent = [[0] * len(tuns) for _ in tuns]  # bytes, from and to
        self._tuns, self._prefix = tuns, socket.inet_aton(SUBNET + "0")[:3]
        self._out_free, self._in_free = [0.0] * len(tuns), [0.0] * len(tuns)
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._number = 0

    def deliver(self) -> float:
        """Write the packets that have arrived. Return the seconds until the next one does."""
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            *_, target, packet = heapq.heappop(self._under_way)
            try:
                os.write(self._tuns[target], packet)
            except OSError:
                pass  # its queue is full, as a network card's may be: TCP sends again
        return max(0.0, self._under_way[0][0] - now) if self._under_way else 60.0

    def take(self, source: int) -> None:
        """Read what a host sends."""
        for _ in range(MAX_PACKETS):
            try:
                packet = os.read(self._tuns[source], 1 << 16)
            except BlockingIOError:
                return
            if packet[0] >> 4 == 4 and packet[16:19] == self._prefix:
                self._send(source, packet[19] - 1, packet)

    def _send(self, source: int, target: int, packet: bytes) -> None:
        if not 0 <= target < len(self._tuns) or not (self.plugged[source] and self.plugged[target]):
            return
        seconds = len(packet) / self.bandwidth
        self.sent[source][target] += len(packet)
        # The bytes leave one after the other, and arrive one after the other.
        self._out_free[source] = left = max(time.monotonic(), self._out_free[source]) + seconds
        self._in_free[target] = arrived = max(left + self.latency, self._in_free[target] + seconds)
        self._number += 1
        heapq.heappush(self._under_way, (arrived, self._number, target, packet))


def obey(wire: Wire, hosts: list[int], command: str, *args):
    """Execute one command; its return value is sent back to the caller."""
    match command:
        case "plug":
            host, wire.plugged[host] = args[0], args[1]
        case "speed":
            wire.latency, wire.bandwidth = args
        case "sent":
            return wire.sent
        case "end":
            os.kill(hosts[args[0]], signal.SIGKILL)


def serve(wire: Wire, tuns: list[int], hosts: list[int], control: socket.socket) -> None:
    """Carry packets and execute commands until standard input is closed."""
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)  # else a wait may last 50 µs longer than asked for
    sources = {tun: host for host, tun in enumerate(tuns)}
    while True:
        # select() has microseconds, epoll only milliseconds
        readable, _, _ = select.select([*tuns, control, 0], [], [], wire.deliver())
        for descriptor in readable:
            if descriptor in sources:
                wire.take(sources[descriptor])
            elif descriptor is control:
                _answer(control.accept()[0], wire, hosts)
            elif not os.read(0, 1 << 10):
                return


def _answer(connection: socket.socket, wire: Wire, hosts: list[int]) -> None:
    with connection, contextlib.suppress(OSError):  # whoever asked may have gone
        connection.send(json.dumps(obey(wire, hosts, *json.loads(connection.recv(1 << 12)))).encode())


def main(count: int, latency: float, bandwidth: float, mtu: int, folder: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what it forks
    try:
        become_root_of_a_namespace()
        lifeline = os.pipe()
        hosts = [start_host(number, folder, lifeline) for number in range(count)]
        tuns = [plug_in(number, pid, mtu) for number, pid in enumerate(hosts)]
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.bind(f"{folder}/control")
        control.listen(64)
        print(json.dumps({"hosts": hosts}), flush=True)
    except OSError as error:
        print(json.dumps({"errno": error.errno, "what": str(error.filename or error)}), flush=True)
        return
    try:
        serve(Wire(tuns, latency, bandwidth), tuns, hosts, control)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
