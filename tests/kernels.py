"""Real Jupyter kernels, and what their cells put out."""

import itertools
import re
import tempfile
import time
from contextlib import contextmanager

import psutil
from jupyter_client.manager import AsyncKernelManager, KernelManager
from traitlets import default

SETUP = """
import torch, torch.distributed as dist, os, time
from helpers import run
"""


PATIENCE_SECONDS = 180.0  # what one thing may take on a busy machine

# A free TCP port may be taken by another process before its kernel binds it; Unix sockets have names of their own.
SOCKETS, _NUMBERS = tempfile.TemporaryDirectory(prefix="kernels-"), itertools.count()


def _over_sockets(kind):
    """A manager whose kernels are reached by Unix sockets."""

    class OverSockets(kind):
        @default("transport")
        def _transport(self):
            return "ipc"

        @default("ip")
        def _folder_of_sockets(self):
            return f"{SOCKETS.name}/{next(_NUMBERS)}"

    return OverSockets


LocalKernelManager = _over_sockets(KernelManager)  # of this file's kernels, and of nbval's
LocalAsyncKernelManager = _over_sockets(AsyncKernelManager)  # of nbclient's


STATUS = re.compile(r"\d+ ranks? (starting|running)")  # what a run of over two seconds says, on a slow machine any run


class Kernel:
    def __init__(self):
        self.manager = LocalKernelManager(kernel_name="python3")
        # Kernels that start together may find IPython's database of past input locked, and then say so.
        self.manager.start_kernel(extra_arguments=["--HistoryManager.enabled=False"])
        self._connect()

    def _connect(self):
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_SECONDS)
        self.process = psutil.Process(self.manager.provisioner.process.pid)

    def start(self, code):
        return self.client.execute(code, store_history=True)

    def finish(self, number, timeout=PATIENCE_SECONDS):
        """Everything the cell put out: text by stream or kind, in order."""
        outputs = []
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != number:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return outputs
            if kind == "stream":
                # A kernel may send one text in several pieces.
                sofar = outputs.pop()[1] if outputs and outputs[-1][0] == content["name"] else ""
                outputs.append((content["name"], sofar + content["text"]))
            elif kind in ("display_data", "execute_result"):
                if not STATUS.match(content["data"].get("text/plain", "")):
                    outputs.append((kind, content["data"]))
            elif kind == "error":
                outputs.append(("error", content))

    def run(self, code, timeout=PATIENCE_SECONDS):
        return self.finish(self.start(code), timeout)

    def text(self, code):
        return "".join(text for kind, text in self.run(code) if kind == "stdout")

    def until(self, condition):
        """Waits for something to be true of the kernel's processes."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert condition()

    def ranks(self):
        (server,) = self.process.children()
        return server.children()

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextmanager
def kernels(count):
    made = [Kernel() for _ in range(count)]
    try:
        yield made
    finally:
        for kernel in made:
            kernel.close()
