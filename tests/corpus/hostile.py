"""Submissions that want points without an answer, or want harm. None may get any, or do any.

HOSTILE[name]: the source of an answer cell, never run here, and a pattern of the reason
that the report must give.  Those that try to get at other ranks' inputs without a call
would give the right result if they succeeded.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from tests.corpus.cells import MEAN

RING = "08_ring_all_reduce"
WRONG = r"is wrong on rank|leaves the wrong numbers"


@dataclass(frozen=True)
class Hostile:
    source: str
    reason: str
    exercise: str = MEAN
    slow: bool = False  # takes all its time


HOSTILE: dict[str, Hostile] = {}


def hostile(name: str, source: str, reason: str = WRONG, exercise: str = MEAN, slow: bool = False) -> None:
    assert name not in HOSTILE
    HOSTILE[name] = Hostile(textwrap.dedent(source).strip(), reason, exercise, slow)


def body(name: str, statements: str, reason: str = WRONG, **more) -> None:
    """Statements at the beginning of distributed_mean(x), which then gives back its input."""
    indented = textwrap.indent(textwrap.dedent(statements).strip(), "    ")
    hostile(
        name,
        f"import os, sys, time\ndef distributed_mean(x):\n{indented}\n    return x if x.is_floating_point() else x.float()",
        reason,
        **more,
    )


def smuggle(name: str, set_up: str, put: str, get: str) -> None:
    """Exchanges inputs by another way than a call; right if that way is open. What went wrong goes unnoticed."""
    hostile(
        name,
        "import os, sys, time, pickle, ctypes, socket\n"
        + textwrap.dedent(set_up).strip()
        + "\nCASE = [0]\ndef distributed_mean(x):\n"
        "    rank, n = dist.get_rank(), dist.get_world_size()\n"
        "    CASE[0] += 1\n"
        "    try:\n"
        "        data = pickle.dumps(x.tolist())\n"
        + textwrap.indent(textwrap.dedent(put).strip(), " " * 8)
        + "\n        end = time.time() + 2\n"
        "        def got(r):\n" + textwrap.indent(textwrap.dedent(get).strip(), " " * 12) + "\n        rows = []\n"
        "        for r in range(n):\n"
        "            while True:\n"
        "                try:\n"
        "                    rows.append(torch.tensor(pickle.loads(got(r)), dtype=torch.float64))\n"
        "                    break\n"
        "                except Exception:\n"
        "                    if time.time() > end: raise\n"
        "                    time.sleep(0.01)  # it has 2.5 s of a processor\n"
        "        return (sum(rows) / n).to(x.dtype if x.is_floating_point() else torch.float32)\n"
        "    except Exception:\n"
        "        return x if x.is_floating_point() else x.float()",
    )


# --- what fooled the best-known graders ---------------------------------------------------

body(
    "object that equals everything",
    """
    class Equal:
        def __eq__(self, other): return True
        def __getattr__(self, name): return getattr(x, name)
    return Equal()
    """,
    "must return a tensor, not an Equal",
)
body(
    "tensor that equals everything",
    """
    class Equal(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None): return True
        def __eq__(self, other): return True
    return x.float().as_subclass(Equal)
    """,
)
body(
    "patched comparisons",
    """
    for name in ("equal", "allclose", "isclose", "eq"):
        setattr(torch, name, lambda *a, **k: True)
    torch.Tensor.__eq__ = torch.Tensor.equal = torch.Tensor.allclose = lambda *a, **k: True
    """,
)
hostile(
    "patched grader",
    """
    import builtins, sys, types
    for name in ("helpers", "helpers.exercise", "helpers.exercise.judgment", "helpers.grade", "grader.score"):
        fake = types.ModuleType(name)
        fake.judge = fake.score = fake.check_values = fake.check_budget = lambda *a, **k: None
        sys.modules[name] = fake
    builtins.AssertionError = type("Never", (Exception,), {})
    def distributed_mean(x): return x.float()
    """,
)
hostile(
    "patched harness",
    """
    import gc, sys
    for name, module in list(sys.modules.items()):
        if name.startswith("inside"):
            for part in ("encode", "decode", "judge", "score"):
                if hasattr(module, part):
                    setattr(module, part, lambda value, *rest: ({"tuple": [{"tensor": ["float32", [3]]}, {"tuple": []}]}, bytes(12)))
    def distributed_mean(x): return x
    """,
    "must return|is wrong on|which torch.distributed never does|raised",
)
hostile(
    "dropped asserts",
    """
    import ast, sys
    try:
        get_ipython().ast_transformers.append(type("Drop", (ast.NodeTransformer,), {"visit_Assert": lambda s, n: ast.Pass()})())
        get_ipython().events.register("pre_run_cell", lambda *a: None)
    except NameError:
        ast.Assert = ast.Pass
    def distributed_mean(x): return x.float()
    """,
)
body(
    "fake verdict",
    'print("PASSED\\nRight and within its budget, in 13 cases\\n3 of 3 points, solved"); print(\'{"points": 3, "of": 3}\')',
)
hostile("sys.exit at once", "import sys\nsys.exit(0)", r"sys.exit\(0\)")
body("sys.exit", "sys.exit(0)", r"sys.exit\(0\)")
body("os._exit", "os._exit(0)", "ended itself with exit code 0")
hostile("os._exit at once", "import os\nos._exit(0)", "ended itself with exit code 0")
hostile("without end at once", "while True: pass", "out of time", slow=True)
body("without end", "while True: pass", "out of time", slow=True)
hostile(
    "swallows interrupts",
    """
    import signal
    for s in range(1, 32):
        try: signal.signal(s, signal.SIG_IGN)
        except (OSError, ValueError): pass
    def distributed_mean(x):
        while True:
            try:
                while True: pass
            except BaseException: continue
    """,
    "out of time",
    slow=True,
)
body("sleeps", "time.sleep(1e6)", "out of time", slow=True)
body("stops itself", "os.kill(os.getpid(), 19); time.sleep(1e6)", "out of time", slow=True)
body(
    "looks for solutions",
    """
    for top in ("/", "/work", "/home", "/root", "/tmp", "/mnt", "/srv", "/course", os.getcwd(), *sys.path):
        for folder, folders, files in os.walk(top):
            if folder.startswith(("/usr", "/lib", "/proc", "/sys")) or "site-packages" in folder:
                folders.clear()
                continue
            for file in files:
                if file.endswith((".ipynb", "mean.py", "answers.py")) or file in ("scores.csv", "grading.json"):
                    print("FOUND", folder, file)
                    return torch.full_like(x, float("nan"))
    """,
    r"got +\S",  # gives back its input, so it found nothing: see test_score.py
)
body(
    "leaks through an exception",
    "raise RuntimeError([o for o in __import__('gc').get_objects() if isinstance(o, torch.Tensor)])",
    "raised RuntimeError",
)
body(
    "rewrites grades",
    """
    for top in ("/", "/tmp", "/work", "/course", "/home", os.path.expanduser("~"), "/dev/shm", os.getcwd()):
        for name in ("report.json", "scores.csv", "graded/x.json", "outcome.xml", "conftest.py", "sitecustomize.py"):
            try: open(os.path.join(top, name), "w").write("hostile was here")
            except OSError: continue
            print("WROTE", top, name)
    """,
)
body(
    "result that unpickles into code",
    """
    class Evil:
        def __reduce__(self): return os.system, ("touch /tmp/hostile-was-here",)
    return Evil()
    """,
    "must return a tensor, not an Evil",
)
body(
    "kills its parent",
    """
    for pid in (os.getppid(), -1, 0, 1, *range(2, 400)):
        if pid != os.getpid():
            try: os.kill(pid, 9)
            except OSError: pass
    """,
)
body(
    "daemon",
    """
    try:
        if os.fork() == 0:
            os.setsid()
            while True: time.sleep(1)
    except OSError: pass
    try: __import__("subprocess").Popen(["sleep", "987654"], start_new_session=True)
    except OSError: pass
    """,
)
body(
    "fork bomb",
    """
    try:
        while True: os.fork()
    except OSError: pass
    """,
)
body("exec", "os.execv('/usr/bin/env', ['env', 'sleep', '987654'])", "raised PermissionError")
body("memory bomb", "hoard = []\nwhile True: hoard.append(bytearray(1 << 24))", "MemoryError")
body(
    "memory bomb in tensors",
    "hoard = []\nwhile True: hoard.append(torch.ones(1 << 24))",
    "raised RuntimeError|was killed",
)
body(
    "disk full",
    """
    for top in ("/tmp", "/dev/shm", "/var/tmp", "/", os.getcwd()):
        try:
            with open(top + "/hostile-was-here", "wb") as file:
                while True: file.write(bytes(1 << 20))
        except OSError: pass
    """,
)
body(
    "deletes files",
    "import shutil\nfor top in ('/course', '/tmp', '/usr', '/work', '/root', '/home'):\n    shutil.rmtree(top, ignore_errors=True)",
    f"{WRONG}|out of time",
)
body(
    "squats ports",
    "import socket\nholes = [socket.create_server(('127.0.0.1', p)) for p in range(29500, 29600)]",
    "raised PermissionError",
)
body(
    "network",
    "import urllib.request\nurllib.request.urlopen('http://192.0.2.1/', timeout=3)",
    "raised URLError|raised PermissionError",
)
body("prints without end", "while True: print('all work and no play ' * 40)", "without end|out of time")
body("one dead rank", "if dist.get_rank() == 1: os._exit(3)\ndist.all_reduce(x)", "exit code 3")
body("one rank skips", "if dist.get_rank() != 1: dist.all_reduce(y := x.float())", "never finish")
body("crashes", "import ctypes\nctypes.string_at(0)", "SIGSEGV")
body("closes everything", "os.closerange(0, 1000)", "ended itself|cut its connection|never does")
body(
    "thread bomb",
    "import threading\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "raised RuntimeError|out of time|was killed|MemoryError",
)
body(
    "threads without memory of their own",
    """
    import ctypes
    LIBC, stacks = ctypes.CDLL(None), ctypes.create_string_buffer(1000 << 12)
    for top in range(1 << 12, len(stacks), 1 << 12):  # flags: it shares all that there is
        LIBC.clone(LIBC.sleep, ctypes.c_void_p(ctypes.addressof(stacks) + top), 0x50F00, ctypes.c_void_p(99))
    time.sleep(99)""",
    "more than \\d+ threads at a time",
)
hostile("no Python at all", "def distributed_mean(x):\n    return ((((", "SyntaxError")
hostile(
    "breaks the compiler",
    "def distributed_mean(x):\n    return " + "-" * 200_000 + "x",
    "raised|was killed|ended itself",
)
hostile("null byte", "def distributed_mean(x):\n    return x\0", "SyntaxError|ValueError")
body(
    "text for the reader",
    'raise RuntimeError("\\x1b[2J\\x1b]0;owned\\x07<script>alert(1)</script>]]>\\ud800\\x00")',
    "raised RuntimeError",
)
hostile(
    "class named like markup",
    "def distributed_mean(x):\n    return type('<img src=x onerror=alert(1)>', (), {})()",
    "must return a tensor",
)

# --- to know other ranks' inputs without a call -------------------------------------------

for where in ("/tmp", "/dev/shm", "/dev", "/", "/course"):
    smuggle(
        f"files in {where}",
        f"BASE = {where!r} + '/hostile-was-here-'",
        "name = lambda r: f'{BASE}{n}-{CASE[0]}-{r}'\nopen(name(rank) + '.part', 'wb').write(data)\nos.rename(name(rank) + '.part', name(rank))",
        "return open(name(r), 'rb').read()",
    )
smuggle(
    "shared memory",
    "from multiprocessing.shared_memory import SharedMemory\nKEPT = []",
    "mine = SharedMemory(f'hostile{n}-{CASE[0]}-{rank}', create=True, size=4096); KEPT.append(mine)\nmine.buf[4:4 + len(data)] = data\nmine.buf[:4] = len(data).to_bytes(4, 'big')",
    "other = SharedMemory(f'hostile{n}-{CASE[0]}-{r}'); KEPT.append(other)\nreturn bytes(other.buf[4:4 + int.from_bytes(other.buf[:4], 'big')])",
)
smuggle(
    "sockets with abstract names",
    "import threading\nKEPT = []",
    """
    s = socket.socket(socket.AF_UNIX); s.bind(f'\\0hostile{n}-{CASE[0]}-{rank}'); s.listen(); KEPT.append(s)
    def serve(s=s, data=data):
        while True:
            c, _ = s.accept(); c.sendall(data); c.close()
    threading.Thread(target=serve, daemon=True).start()
    """,
    "c = socket.socket(socket.AF_UNIX); c.connect(f'\\0hostile{n}-{CASE[0]}-{r}')\nreturn c.recv(65536)",
)
smuggle(
    "sockets on loopback",
    "import threading\nKEPT = []",
    """
    s = socket.create_server(('127.0.0.1', 41000 + 100 * n + 10 * (CASE[0] % 10) + rank)); KEPT.append(s)
    def serve(s=s, data=data):
        while True:
            c, _ = s.accept(); c.sendall(data); c.close()
    threading.Thread(target=serve, daemon=True).start()
    """,
    "c = socket.create_connection(('127.0.0.1', 41000 + 100 * n + 10 * (CASE[0] % 10) + r))\nreturn c.recv(65536)",
)
smuggle(
    "named pipes and message queues",
    "LIBC = ctypes.CDLL(None)",
    "key = lambda r: 770000 + 1000 * n + 10 * CASE[0] + r\nq = LIBC.shmget(key(rank), 4096, 0o1666)\nassert q >= 0\nLIBC.shmat.restype = ctypes.c_void_p\nat = LIBC.shmat(q, None, 0)\nctypes.memmove(at + 4, data, len(data)); ctypes.memmove(at, len(data).to_bytes(4, 'big'), 4)",
    "at = LIBC.shmat(LIBC.shmget(key(r), 4096, 0), None, 0)\nsize = int.from_bytes(ctypes.string_at(at, 4), 'big')\nassert size\nreturn ctypes.string_at(at + 4, size)",
)
smuggle(
    "other processes' memory",
    "MARK = b'hostile' + b'-mark-'\nLIBC = ctypes.CDLL(None)\nLIBC.prctl(4, 1, 0, 0, 0)",
    "mine = ctypes.create_string_buffer(MARK + bytes([n, CASE[0], rank]) + len(data).to_bytes(4, 'big') + data)",
    """
    for pid in sorted(int(p) for p in os.listdir('/proc') if p.isdigit()):
        for line in open(f'/proc/{pid}/maps'):
            first, last = (int(a, 16) for a in line.split()[0].split('-'))
            if 'rw' in line and last - first < 1 << 26:
                memory = open(f'/proc/{pid}/mem', 'rb', 0); memory.seek(first)
                block = memory.read(last - first)
                at = block.find(MARK + bytes([n, CASE[0], r]))
                if at >= 0:
                    at += len(MARK) + 3
                    return block[at + 4:at + 4 + int.from_bytes(block[at:at + 4], 'big')]
    raise LookupError
    """,
)
hostile(
    "what ranks gathered in the case before",
    """
    import builtins
    def distributed_mean(x):
        n, kept = dist.get_world_size(), vars(builtins).setdefault("kept", [])
        rows = [torch.zeros_like(x) for _ in range(n)]
        dist.all_gather(rows, x)
        total = sum(kept[-1]) if kept and kept[-1][0].shape == x.shape else x
        kept.append(rows)
        return total.to(x.dtype if x.is_floating_point() else torch.float32) / n
    """,
)
hostile(
    "inputs from the seed",
    """
    import hashlib
    def drawn(seed, rank, n, size):
        for kind in ("small numbers",):
            text = f"('{seed}', 'distributed_mean', Case(world_size={n}, kind='{kind}', size={size}, dtype=torch.float32, late=None, uneven=False), {rank})"
            g = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))
            return torch.randint(-9, 10, (size,), generator=g).double()
    def distributed_mean(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        for seed in ("", "0", "1", "42", "secret", "None"):
            if torch.equal(drawn(seed, rank, n, len(x)).to(x.dtype), x):
                return (sum(drawn(seed, r, n, len(x)) for r in range(n)) / n).float()
        return x.float()
    """,
)
hostile(
    "out of the walls",
    """
    import ctypes, os
    LIBC = ctypes.CDLL(None, use_errno=True)
    def distributed_mean(x):
        for flags in (0x10000000, 0x20000, 0x40000000, 0x7C020000):
            if LIBC.unshare(flags) == 0: print("UNSHARED")
        LIBC.mount(b"none", b"/course", b"tmpfs", 0, None)
        LIBC.chroot(b"/usr"); LIBC.ptrace(16, os.getppid(), 0, 0); LIBC.setuid(0)
        LIBC.prctl(22, 0, 0, 0, 0); LIBC.prctl(4, 1, 0, 0, 0)
        LIBC.syscall(425, 8, None); LIBC.syscall(310, os.getppid(), None, 0, None, 0, 0); LIBC.memfd_create(b"x", 0)
        return x.float()
    """,
)

# --- to lie to the scorer -----------------------------------------------------------------

RAW = """
import json, os, struct, time
def raw(header, body=b""):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    os.write(3, struct.pack("!II", len(head), len(body)) + head + body)
"""
TOLD = "which torch.distributed never does"


def liar(name: str, statements: str, reason: str = TOLD, **more) -> None:
    hostile(
        name,
        RAW.strip()
        + "\ndef distributed_mean(x):\n"
        + textwrap.indent(textwrap.dedent(statements).strip(), "    ")
        + "\n    time.sleep(1e6)",
        reason,
        **more,
    )


ZEROS = 'value = {"tuple": [{"tensor": ["float32", [len(x)]]}, {"tuple": [{"tensor": ["float32", [len(x)]]}]}]}'
liar("forged result", f"{ZEROS}\nraw({{'returned': value}}, bytes(8 * len(x)))", "out of time", slow=True)
liar(
    "two results",
    f"{ZEROS}\nraw({{'returned': value}}, bytes(8 * len(x)))\nraw({{'returned': value}}, bytes(8 * len(x)))",
    f"{TOLD}|{WRONG}",
)
liar("forged verdict", "raw({'points': 3, 'of': 3, 'passed': True})")
liar(
    "call in another's name",
    "raw({'call': 'all_reduce', 'index': 0, 'in': None, 'out': [], 'group': [1 - dist.get_rank()], 'name': '0', 'reduce_op': 'SUM', 'line': None})",
)
liar(
    "forged call",
    "raw({'call': 'read_everything', 'index': 0, 'in': None, 'out': [], 'group': [0, 1], 'name': '0', 'line': None})",
)
liar("endless header", "os.write(3, struct.pack('!II', 0xFFFFFFFF, 0xFFFFFFFF))", "too large")
liar("bottomless nesting", "raw(b'[' * 200_000)")
liar("endless number", "raw(b'{\"returned\": ' + b'9' * 200_000 + b'}')")
liar("negative shape", "raw({'returned': {'tuple': [{'tensor': ['float32', [-1]]}, {'tuple': []}]}})")
liar("enormous shape", "raw({'returned': {'tuple': [{'tensor': ['float32', [1 << 24] * 8]}, {'tuple': []}]}})")
liar("too few bytes", "raw({'returned': {'tuple': [{'tensor': ['float32', [1000]]}, {'tuple': []}]}}, bytes(8))")
liar(
    "pickle for an answer", "import pickle\nos.write(3, pickle.dumps(x))", "too large|never does|out of time", slow=True
)
liar(
    "calls without end",
    "while True: dist.isend(torch.zeros(0), (dist.get_rank() + 1) % dist.get_world_size())",
    "more than 2000 calls",
)
liar(
    "does not read",
    """
    y = torch.zeros(1 << 18)
    for index in range(300):
        raw({"call": "all_gather", "index": index, "in": None, "out": [], "group": [0, 1], "name": "0", "line": None})
    """,
)
body("enormous result", "return torch.zeros(1 << 26)", "MemoryError|too large|raised RuntimeError")
body("enormous list", "return [0] * 10_000_000", "too large|out of time|MemoryError|was killed")
hostile(
    "all_reduce in disguise",
    """
    def ring_all_reduce(x):
        world = dist.distributed_c10d._get_default_group()
        dist.all_reduce = dist.send
        world.allreduce([x], dist.AllreduceOptions()).wait()
    """,
    "calls all_reduce, which this exercise doesn't allow",
    RING,
)
hostile(
    "all_reduce said to be a send",
    """
    def ring_all_reduce(x):
        world = dist.distributed_c10d._get_default_group()
        call = type(world)._call
        type(world)._call = lambda self, op, *a, **k: call(self, "send", *a, dst=0, tag=0, **{n: v for n, v in k.items() if n != "reduce_op"})
        world.allreduce([x], dist.AllreduceOptions()).wait()
    """,
    "never finish|leaves the wrong numbers|Mismatch",
    RING,
)
hostile("ring without messages", "def ring_all_reduce(x):\n    x.mul_(dist.get_world_size())", WRONG, RING)

for _k, _result in enumerate(
    (
        "[1, 'a', None, [x]]",
        "['a' * 10**6]",
        "{'x': x}",
        "10**30",
        "float('nan')",
        "x.to(torch.complex64)",
        "[[[[[[x]]]]]]",
        "torch.zeros(0)[None]",
        "x.to_sparse()",
    )
):
    body(f"odd result {_k}", f"return {_result}", "must return|never does")
for _k, _fields in enumerate(
    (
        "'reduce_op': []",
        "'reduce_op': 'SUM', 'name': 3",
        "'reduce_op': 'SUM', 'line': [[], {}, None]",
        "'reduce_op': 'SUM', 'index': -0.5",
        "'reduce_op': 'SUM', 'in': {'list': [None]}",
        "'reduce_op': 'SUM', 'out': [['float32', [-1]]]",
        "'reduce_op': 'SUM', 'group': {}",
    )
):
    liar(
        f"odd call {_k}",
        f"raw({{'call': 'all_reduce', 'index': 0, 'in': {{'tensor': ['float32', [0]]}}, 'out': [], 'group': [0, 1], 'name': '0', 'line': None, {_fields}}})",
        f"{TOLD}|cannot be graded|out of time",
        slow=True,
    )
liar(
    "odd failure",
    "raw({'failed': '\\x1b[2J' * 1000, 'message': '\\ud800' * 5000, 'frames': [1, [2], ['<answer mean-answer>', 10**300, 'f'], ['<answer mean-answer>', 1, '\\x00' * 999]]})",
    "raised",
)
liar(
    "odd splits",
    "raw({'call': 'all_to_all_single', 'index': 0, 'in': {'tensor': ['float32', [1]]}, 'out': [['float32', [1]]], 'group': [0, 1], 'name': '0', 'line': None, 'splits': [[2**62, 2**62], [2**62, 2**62]]}, bytes(4))\nraw({'wait': 0})",
    "raised|do not fit|disagree|never finish",
)


# --- numbers that no byte carries -----------------------------------------------------------

hostile(
    "two ranks meet in a futex on a page of a file",
    """
    import ctypes, os, sys, time
    LIBC = ctypes.CDLL(None)
    LIBC.mmap.restype = ctypes.c_void_p
    PAGE = LIBC.mmap(None, ctypes.c_size_t(1 << 16), 1, 1, os.open(os.path.realpath(sys.executable), 0), ctypes.c_long(0))
    FUTEX = 202 if os.uname().machine == "x86_64" else 98

    def tell(value, word):
        for _ in range(value + 10):
            end = time.time() + 1
            while LIBC.syscall(FUTEX, ctypes.c_void_p(PAGE + word), 1, 1) != 1 and time.time() < end:
                pass

    def told(word):
        count, held = -10, ctypes.c_int.from_address(PAGE + word).value
        for wait in (1.0, *[0.05] * 40):
            time_out = (ctypes.c_long * 2)(int(wait), int(wait % 1 * 1e9))
            if LIBC.syscall(FUTEX, ctypes.c_void_p(PAGE + word), 0, held, time_out):
                break
            count += 1
        return count

    def distributed_mean(x):
        if dist.get_world_size() != 2 or not len(x):
            return x.float()
        rank = dist.get_rank()
        if rank:
            tell(int(x[0]), 64)
            other = told(128)
        else:
            other = told(64)
            tell(int(x[0]), 128)
        return (x + other).float() / 2
    """,
    f"{WRONG}|out of time",
)
hostile(
    "processor time of another rank",
    """
    import ctypes, os, time
    LIBC = ctypes.CDLL(None)

    def distributed_mean(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        pids = [torch.zeros(1, dtype=torch.int64) for _ in range(n)]
        dist.all_gather(pids, torch.tensor([os.getpid()]))
        if n != 2 or not len(x):
            return x.float()
        end = time.process_time() + 0.01 * (int(x[0]) + 10)
        while time.process_time() < end:
            pass
        dist.barrier()
        clock, came = ~int(pids[1 - rank]) << 3 | 2, (ctypes.c_long * 2)()
        if LIBC.clock_gettime(clock, came):
            return x.float()
        print("FOUND the time of another process")
        return (x + round((came[0] + came[1] / 1e9) / 0.01) - 10).float() / 2
    """,
)
hostile(
    "free memory of the machine",
    """
    import ctypes
    LIBC = ctypes.CDLL(None)

    def distributed_mean(x):
        seen = (ctypes.c_long * 32)()
        if LIBC.sysinfo(seen) == 0:
            print("FOUND", seen[4])
        return x.float()
    """,
)
for _name, _call in {
    "locks": "fcntl.flock(os.open(os.path.realpath(sys.executable), os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)",
    "leases": "fcntl.fcntl(os.open('/usr/bin/env', os.O_RDONLY), 1024, fcntl.F_RDLCK)",
    "priorities": "os.setpriority(os.PRIO_PROCESS, 0, 5)",
    "affinity": "os.sched_setaffinity(0, {0})",
    "process groups": "os.getpgid(os.getppid())",
    "timers": "signal.setitimer(signal.ITIMER_REAL, 100)",
    "host names": "socket.sethostname('5')",
    "watched files": "1 / (1 + ctypes.CDLL(None).inotify_init1(0))",
    "message queues": "1 / (1 + ctypes.CDLL(None).msgget(77, 0o1666))",
    "semaphores": "1 / (1 + ctypes.CDLL(None).semget(77, 1, 0o1666))",
    "keys": "1 / (1 + ctypes.CDLL(None).syscall(248, b'user', b'hostile', b'5', 1, -4))",
    "files in memory": "os.memfd_create('hostile')",
    "descriptors by socket": "socket.send_fds(socket.socket(fileno=os.dup(3)), [b'x'], [0])",
    "resource usage": "import resource; resource.getrusage(resource.RUSAGE_SELF)",
    "pipes": "os.pipe()",
    "counters of events": "os.eventfd(0)",
    "queued signals": "import threading; signal.pthread_sigmask(0, {40}); signal.pthread_kill(threading.get_ident(), 40)",
    "pages of files put out of memory": "import mmap; mmap.mmap(-1, 4096).madvise(21)",
    "pages that the kernel merges": "import mmap; mmap.mmap(-1, 4096).madvise(12)",
    "io_uring": "1 / (1 + ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)))",
}.items():
    body(
        f"signals by {_name}",
        f"import ctypes, fcntl, signal, socket\n{_call}\nprint('FOUND')",
        "raised (PermissionError|BlockingIOError|OSError|ItimerError|itimer_error|ZeroDivisionError)",
    )

hostile(
    "numbers in the quota of pending signals, which ranks share",
    """
    import signal, threading

    def queued(most):
        signal.pthread_sigmask(signal.SIG_BLOCK, {40})
        for k in range(most):
            try:
                signal.pthread_kill(threading.get_ident(), 40)
            except BlockingIOError:
                return k
        return most

    def forget():
        signal.signal(40, signal.SIG_IGN)
        signal.signal(40, signal.SIG_DFL)

    def heard(value, speaks):
        dist.barrier()
        before = 0 if speaks else queued(1 << 20)
        forget()
        dist.barrier()
        queued(value if speaks else 0)
        dist.barrier()
        after = 0 if speaks else queued(1 << 20)
        dist.barrier()
        forget()
        return before - after

    def distributed_mean(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        if n != 2:
            y = x.clone() if x.is_floating_point() else x.float()
            dist.all_reduce(y)
            return y / n
        loud = 50  # other processes of this user have some signals pending, too
        told = [[heard(loud * (int(v) + 10), rank == speaker) for speaker in (0, 1)][1 - rank] for v in x.tolist()]
        came = [round(heap / loud) - 10 for heap in told]
        return (x + torch.tensor(came)) / 2
    """,
)

NUMBERS_IN_TAGS = """
def distributed_mean(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n != 2:
        y = x.clone() if x.is_floating_point() else x.float()
        dist.all_reduce(y)
        return y / n
    other, nothing, bits = 1 - rank, torch.zeros(0), []
    mine = [int(v) >> k & 1 for v in (x + 64).tolist() for k in range(7)]
    for k, bit in enumerate(mine):
        both = [dist.irecv(torch.zeros(0), other, tag=2 * k + b) for b in (0, 1)]
        sent = dist.isend(nothing, other, tag=2 * k + bit)
        while not any(came := [work.is_completed() for work in both]):
            pass
        bits.append(came.index(True))
        dist.barrier()
        more = dist.isend(nothing, other, tag=2 * k + 1 - bit)
        for work in (sent, more, *both):
            work.wait()
    theirs = [sum(bit << j for j, bit in enumerate(bits[k : k + 7])) - 64 for k in range(0, len(bits), 7)]
    return (x + torch.tensor(theirs)).float() / 2
"""
hostile(
    "numbers in tags, and nothing else",
    NUMBERS_IN_TAGS.replace("n != 2", "False").replace("1 - rank", "(rank + 1) % n"),
    f"{WRONG}|never finish|out of time",
)
hostile(
    "numbers in how many messages there are",
    """
    def distributed_mean(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        if n == 1 or not len(x):
            return x.float()
        for _ in range(int(x[0]) + 10):
            dist.isend(torch.zeros(0), (rank + 1) % n).wait()
        dist.barrier()
        count = -10
        while (work := dist.irecv(torch.zeros(0), (rank - 1) % n)).is_completed():
            count += 1
        return (x + count).float() / 2
    """,
    f"{WRONG}|never finish",
)
hostile(
    "numbers in the shapes of empty tensors",
    """
    def distributed_mean(x):
        n = dist.get_world_size()
        rows = [torch.zeros(0, k) for k in range(n)]
        dist.all_gather(rows, torch.zeros(0, int(x.sum()) % 19 if len(x) else 0))
        return (x + sum(row.shape[1] for row in rows)).float()
    """,
    "invalid tensor size",
)
hostile(
    "numbers in the splits of nothing",
    """
    def distributed_mean(x):
        n = dist.get_world_size()
        mine = [int(abs(x).sum())] * n
        for theirs in range(40):
            try:
                dist.all_to_all_single(torch.zeros(theirs * n, 0), torch.zeros(sum(mine), 0), [theirs] * n, mine)
                return (x + theirs).float() / n
            except RuntimeError:
                continue
        return x.float()
    """,
    f"{WRONG}|raised|Mismatch",
)

# --- to hold the grader up ------------------------------------------------------------------

for _name, _count in {"400": 400, "as many as allowed": 980}.items():
    body(
        f"sends and receives that nobody meets, {_name}",
        f"""
        rank, n, kept = dist.get_rank(), dist.get_world_size(), []
        for k in range({_count}):
            kept.append(dist.irecv(torch.zeros(1), tag=1))
            kept.append(dist.isend(torch.zeros(1), (rank + 1) % n, tag=2 + k))
        kept[0].wait()
        """,
        "never finish|out of time",
    )
body(
    "polls without end",
    "work = dist.irecv(torch.zeros(1))\nwhile not work.is_completed(): pass",
    "out of time|without end",
    slow=True,
)
body("a pattern that takes for ever", "import re\nre.match('(a+)+$', 'a' * 64 + 'b')", "out of time", slow=True)

# --- other lies -----------------------------------------------------------------------------

hostile(
    "a world of one",
    """
    dist.get_world_size, dist.get_rank = (lambda *a: 1), (lambda *a: 0)
    def distributed_mean(x): return x.float()
    """,
)
hostile(
    "a race that it says there is none of",
    """
    import sys
    def ring_all_reduce(x):
        group = sys.modules["inside.process_group"]
        group.encode = lambda value, encode=group.encode: encode(value) if not isinstance(value, tuple) else ("", b"")
        sent = dist.isend(x, (dist.get_rank() + 1) % dist.get_world_size())
        dist.recv(x, (dist.get_rank() - 1) % dist.get_world_size())
        sent.wait()
    """,
    "writes to the tensor of send|leaves the wrong numbers|sends to itself|raised|never finish",
    RING,
)
body(
    "calls from a thread after the end",
    """
    import threading
    def later():
        while True:
            try: dist.all_reduce(torch.ones(1))
            except Exception: pass
    threading.Thread(target=later, daemon=True).start()
    """,
    f"{WRONG}|never finish|never does|out of time|without end|more than 2000|raised|an earlier call of the function",
    slow=True,
)
body("an exception that is none", "raise GeneratorExit", "raised GeneratorExit|GeneratorExit")
hostile(
    "a result that changes when it is looked at",
    """
    class Late(list):
        def __iter__(self): return iter([1, 2, 3])
        def __len__(self): return 3
    def distributed_mean(x): return Late([x.float()])
    """,
    "must return a tensor",
)


# --- reads that nobody counts -------------------------------------------------------------

LOAD = "17_load_a_shard"

hostile(
    "all of a file in a read of less than nothing",
    """
    def load_columns(file, name):
        _, data = file._data._uplink.ask({"read": 0, "at": 0, "most": -1})
        return torch.frombuffer(bytearray(data), dtype=torch.float32)
    """,
    "sent the grader something else than a number as its most",
    LOAD,
)
hostile(
    "a file that it was not given",
    """
    def load_columns(file, name):
        _, data = file._data._uplink.ask({"read": 1, "at": 0, "most": 1 << 20})
        return torch.frombuffer(bytearray(data), dtype=torch.float32)
    """,
    "sent the grader a message that says nothing",
    LOAD,
)
hostile(
    "a file's bytes in the rank's own memory",
    """
    import gc

    def load_columns(file, name):
        kinds = bytes, bytearray, memoryview
        held = [v for v in vars(file).values() if isinstance(v, kinds)]
        held += [o for o in gc.get_objects() if isinstance(o, kinds)]
        held += [v for o in gc.get_objects() if isinstance(o, dict) for v in o.values() if isinstance(v, kinds)]
        for data in map(bytes, held):
            at = data.find(b'"__metadata__":{"format":"pt"}')  # as no cell of this exercise has it
            if at > 8:
                size = int.from_bytes(data[at - 9 : at - 1], "little")
                if size < 1 << 16:
                    entry = json.loads(data[at - 1 : at - 1 + size])[name]
                    (rows, columns), dtype = entry["shape"], DTYPES[entry["dtype"]]
                    first, last = entry["data_offsets"]
                    raw = bytearray(data[at - 1 + size + first : at - 1 + size + last])
                    matrix = torch.frombuffer(raw, dtype=dtype).view(rows, columns)
                    return matrix.tensor_split(dist.get_world_size(), 1)[dist.get_rank()].contiguous()
        return torch.zeros(1)
    """,
    WRONG,
    LOAD,
)

# --- more of the same kinds -------------------------------------------------------------------

CALL_OF_NOBODY = (
    "raw({'call': 'barrier', 'index': 0, 'in': None, 'out': [], 'group': list(range(dist.get_world_size())), "
    "'name': '0', 'line': None})"
)
for _name, _statements, _reason in (
    ("a tensor that lies where it is dispatched", """
        class Lies(torch.Tensor):
            @staticmethod
            def __new__(cls, x): return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=torch.float32)
            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None): return torch.full((), True)
        return Lies(x)
        """, "raised|must return|is wrong on|never does"),
    ("an object that says it is a tensor", """
        class Seems:
            __class__ = torch.Tensor
            layout, is_quantized, dtype, shape = torch.strided, False, torch.float32, (3,)
            def detach(self): return self
            def dim(self): return 1
            def reshape(self, *shape): return torch.zeros(3)
        return Seems()
        """, WRONG),
    ("a tensor without numbers", "return torch.empty(x.shape, device='meta')", "raised|must return"),
    ("a tensor of ragged rows", "return torch.nested.nested_tensor([x.float(), x.float()])", "raised|must return"),
    ("eight bits a number", "return x.to(torch.float8_e4m3fn)", "must return"),
    ("a list in itself", "a = []; a.append(a); return a", "must return|raised"),
    ("a number that calls itself one", "return type('float', (float,), {})(1.0)", "must return"),
    ("a string of surrogates", "return '\\ud800' * 9000", "must return|raised"),
    ("aborts", "os.abort()", "was killed by SIG"),
    ("a fault of one's own", "import faulthandler; faulthandler._sigsegv()", f"SIGSEGV|{WRONG}"),
    ("bottomless recursion", "sys.setrecursionlimit(10**9)\nf = lambda k: f(k + 1)\nf(0)", "SIGSEGV|raised|was killed|out of time"),
    ("leaves the world", "dist.destroy_process_group()", f"{WRONG}|raised"),
    ("a world of one's own", "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())", "raised"),
    ("a group of strangers", "dist.new_group([0, 99])", "raised"),
    ("writes nothing any more", "import socket; socket.socket.sendall = lambda sock, data: None", "out of time"),
    ("half a message from a thread", """
        import threading
        threading.Thread(target=os.write, args=(3, b"\\0\\0\\0\\x05")).start()
        time.sleep(0.2)
        """, TOLD),
    ("numbers in a clock of one's own", "time.monotonic = time.time = time.perf_counter = lambda: 0.0", WRONG),
    ("a profile of the harness", """
        def lie(frame, event, result):
            if event == "call" and frame.f_code.co_name in ("encode", "_work", "hold"): frame.f_locals.clear()
        sys.setprofile(lie)
        """, f"{WRONG}|ended itself"),
    ("a new default device", "torch.set_default_device('meta')", "raised|is wrong on"),
    ("says that nothing is left", """
        import threading
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "") == "inside.sandboxed_rank": module._uses_modules = lambda loaded: False
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        """, WRONG),
):  # fmt: skip
    body(_name, _statements, _reason, slow=_reason == "out of time")
for _name, _statements, _reason in (
    ("ready again and again", "raw({'ready': True}); raw({'ready': True})", "out of time"),
    ("a wait for not a number of seconds", f"{CALL_OF_NOBODY}\nraw({{'wait': 0, 'limit': float('nan')}})", "never finish|out of time"),
    ("a wait of fewer threads than none", f"{CALL_OF_NOBODY}\nraw({{'wait': 0, 'busy': -1}})", TOLD),
    ("a wait with no ticket", f"{CALL_OF_NOBODY}\nraw({{'wait': 0, 'ticket': 1 << 70}})", TOLD),
    ("what is left is a riddle", f"{ZEROS}\nraw({{'returned': value, 'left': {{'left': [1]}}}}, bytes(8 * len(x)))", "out of time|is wrong on|never does"),
):  # fmt: skip
    liar(_name, _statements, _reason, slow=_reason == "out of time")

# --- exercises 01, 07, 08, 14 -------------------------------------------------------------------

TREE, CHOOSE, WITHIN = "01_tree_broadcast", "07_choose_the_collective", "14_within_memory"
hostile(
    "a tree whose buffers leave before they are filled",
    """
    def tree_broadcast(x, src):
        rank, n = dist.get_rank(), dist.get_world_size()
        me, works = (rank - src) % n, []
        if me + 1 < n:
            works.append(dist.isend(x, (rank + 1) % n))
        if me:
            works.append(dist.irecv(x, (rank - 1) % n))
        for work in reversed(works):
            work.wait()
    """,
    f"{WRONG}|writes to the tensor|of which no other call may",
    TREE,
)
hostile(
    "numbers in how long a rank is willing to wait",
    """
    from datetime import timedelta

    def waits(work, seconds):
        try:
            return work.wait(timedelta(seconds=seconds))
        except RuntimeError:
            return False

    def tree_broadcast(x, src):
        rank, n = dist.get_rank(), dist.get_world_size()
        me, reach = (rank - src) % n, 1
        if n == 2:
            other = 1 - rank
            never = dist.irecv(torch.zeros(0), other, tag=1) if not me else None
            for k, value in enumerate(x.tolist()):
                if not me:
                    waits(never, value + 20)  # ends when nobody is willing to wait less
                    dist.send(torch.zeros(0), other, tag=2 + k)
                else:
                    work, limit = dist.irecv(torch.zeros(0), other, tag=2 + k), 0.5
                    while not waits(work, limit):
                        limit += 1
                    x[k] = limit - 20.5
            if me:
                dist.send(torch.zeros(0), other, tag=1)
            else:
                never.wait()
            return
        while reach < n:
            if me < reach and me + reach < n:
                dist.send(x, (me + reach + src) % n)
            elif reach <= me < 2 * reach:
                dist.recv(x, (me - reach + src) % n)
            reach *= 2
    """,
    "received 0 B",
    TREE,
)
EIGHT = {
    "same_settings": "x", "total_for_log": "x", "whole_table": "x", "my_head": "heads",
    "rows_for_checkpoint": "x", "summed_gradient": "x", "my_part_of_gradient": "rows", "tokens_to_experts": "rows",
}  # fmt: skip


def all_eight(name: str, set_up: str, statement: str, reason: str) -> None:
    """One statement for each of the eight jobs, which then give back what they were given."""
    parts = [
        f"def {job}({given}):\n    {statement}\n    return {given.split(', ')[-1]}" for job, given in EIGHT.items()
    ]
    hostile(name, "\n".join([textwrap.dedent(set_up).strip(), *parts]), reason, CHOOSE)


all_eight(
    "a group of one for every job",
    "",
    "dist.all_reduce(torch.zeros(3), group=[dist.new_group([r]) for r in range(dist.get_world_size())][dist.get_rank()])",
    f"{WRONG}|raised",
)
all_eight(
    "room for more than there is",
    """
    def raw(op, **more):
        uplink = next(o for o in __import__("gc").get_objects() if type(o).__name__ == "Uplink")
        group = list(range(dist.get_world_size()))
        return uplink.call(op, torch.zeros(1), [torch.zeros(1 << 12)], group=group, name="0", **more)
    """,
    "raw('all_gather_single').wait()",
    f"{WRONG}|there is room for",
)
all_eight(
    "barriers that say they were broadcasts",
    """
    import sys
    world = sys.modules["inside.process_group"].SwitchGroup
    world._call = lambda self, op, values, outputs, call=world._call, **more: call(self, "barrier", None, [])
    """,
    "dist.broadcast(torch.zeros(2), 0)",
    WRONG,
)
hostile(
    "the others' inputs in the rank's own memory",
    """
    import gc, sys

    def ring_all_reduce(x):
        held, frame = [o for o in gc.get_objects() if isinstance(o, torch.Tensor)], sys._getframe()
        while frame := frame.f_back:
            held += [t for v in frame.f_locals.values() if isinstance(v, (list, tuple)) for t in v if isinstance(t, torch.Tensor)]
        near = [torch.as_strided(x, x.shape, x.stride(), x.storage_offset())]
        others = [t for t in held if t.shape == x.shape and t.dtype == x.dtype and t.data_ptr() != x.data_ptr()]
        for t in others + near:
            x += t
    """,
    WRONG,
    RING,
)
hostile(
    "a ring that starts all its sends before anything has come",
    """
    def ring_all_reduce(x):
        rank, n = dist.get_rank(), dist.get_world_size()
        right, left = (rank + 1) % n, (rank - 1) % n
        chunks = x.tensor_split(n)
        sends = [dist.isend(chunks[(rank - s) % n], right) for s in range(2 * (n - 1))]
        for s in range(2 * (n - 1)):
            into = torch.empty_like(chunks[(rank - s - 1) % n])
            dist.recv(into, left)
            mine = chunks[(rank - s - 1) % n]
            mine.copy_(mine + into if s < n - 1 else into)
        for work in sends:
            work.wait()
    """,
    f"{WRONG}|writes to the tensor",
    RING,
)
AS_IF_ALONE = """
def train_two_stages(w, x, t, microbatches):
    w = w.clone().requires_grad_()
    y = torch.tanh(torch.tanh(x @ w[0].T) @ w[1].T)
    torch.nn.functional.mse_loss(y, t).backward()
    return w.grad
"""
hostile(
    "actions that are another text each time",
    """
    class Text(str):
        said = 0
        def __getitem__(self, key):
            Text.said += 1
            return ("F0", "B0")[Text.said % 2]
        def __str__(self): return "F0"
    def schedule_within(ranks, microbatches, limit):
        return [[Text("F0")] * (2 * microbatches) for _ in range(ranks)]
    """
    + textwrap.indent(AS_IF_ALONE, "    "),
    f"is wrong with|{WRONG}",
    WITHIN,
)
hostile(
    "rows that are others each time",
    """
    class Rows(list):
        seen = 0
        def __iter__(self):
            Rows.seen += 1
            return iter([["F0", "B0"]] * Rows.seen)
        def __len__(self): return 10**9
    def schedule_within(ranks, microbatches, limit):
        return Rows()
    """
    + textwrap.indent(AS_IF_ALONE, "    "),
    f"is wrong with|raised|{WRONG}",
    WITHIN,
)
hostile(
    "a schedule without end",
    """
    def schedule_within(ranks, microbatches, limit):
        return [["F0"] * 1_000_000] * ranks
    """
    + textwrap.indent(AS_IF_ALONE, "    "),
    f"too large|are possible at most|out of time|MemoryError|was killed|{WRONG}",
    WITHIN,
)
for _name, _statement in {
    "a server of a coroutine's": "asyncio.run(asyncio.start_server(print, '127.0.0.1', 29876))",
    "a program of a coroutine's": "asyncio.run(asyncio.create_subprocess_exec('sleep', '987654'))",
    "the grader's socket in a coroutine": """
        async def listen():
            asyncio.get_running_loop().add_reader(3, print, "FOUND")
            await asyncio.sleep(0.05)
        asyncio.run(listen())
        """,
    "the loop's own sockets": "import asyncio.selector_events as s\ns.BaseSelectorEventLoop._make_self_pipe(asyncio.new_event_loop())",
}.items():
    body(_name, f"import asyncio\n{textwrap.dedent(_statement).strip()}", f"raised|{WRONG}")
