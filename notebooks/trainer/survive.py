"""Replicas, each a job of its own on its own mesh: any may die, the others go on, and new ones join (chapter 22).

python survive.py 29600     hosts the store by which they meet: the one process that must not die
"""

import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

LIMIT = timedelta(seconds=10)  # nothing else notices a replica that is stopped
ROLL_CALL_SECONDS = 1.0  # that the first to come waits for the others
NATIVE = hasattr(dist, "_reconfigure")  # from torch 2.14 on, a group can change its members; still private


class Remade:
    """A group that is made again for every generation, in the same processes."""

    def __init__(self, store, me):
        self.store, self.me, self.group = store, me, None

    def meet(self, generation, members):
        if NATIVE:
            return self.reconfigure(generation * 1000, members)
        names = dist.PrefixStore(f"generation {generation}", self.store)  # where nobody finds an old address
        self.group = dist.ProcessGroupGloo(names, members.index(self.me), len(members), LIMIT)

    def hang_up(self, generation):
        """Close the connections: members that still wait for this one would wait until their limit."""
        if NATIVE and self.group:
            return self.reconfigure(generation * 1000 + 1 + self.me, [self.me])
        self.group = None

    def add(self, t):
        self.group.allreduce(t).wait()

    def copy(self, t, root):
        self.group.broadcast(t, root).wait()

    def reconfigure(self, number, members):
        if self.group is None:
            options, device = dist.ProcessGroupGloo._Options(), dist.ProcessGroupGloo.create_default_device()
            options._devices, options._timeout, options.enable_reconfigure = [device], LIMIT, True
            self.group = dist.ProcessGroupGloo(self.store, self.me, self.me + 1, options)
        self.store.set(f"{number} {self.me}", self.group.get_reconfigure_handle())
        change = dist.distributed_c10d.ReconfigureOptions()
        change.uuid, change.timeout = number, LIMIT
        change.handles = [self.store.get(f"{number} {member}").decode() for member in members]
        self.group.reconfigure(change).wait()


class Quorum:
    """The replicas that train together now: this rank's group has the ranks of its number in all of them."""

    def __init__(self, state, config):
        self.state, self.config, self.generation, self.members = state, config, 0, []
        host, port = config.meet.rsplit(":", 1)
        self.store = dist.TCPStore(host, int(port), is_master=False, timeout=LIMIT)
        self.remade = Remade(dist.PrefixStore(f"rank {dist.get_rank()}", self.store), config.replica)

    def agrees(self, tensors):
        """Average tensors over the replicas. Returns whether that worked on all of them, and nobody wants to join."""
        try:
            for t in tensors if self.members else ():
                self.remade.add(t.div_(len(self.members)))
            return self.vote(ok=bool(self.members))
        except RuntimeError:  # maybe only here, and maybe in the vote: who has heard its result is a step ahead
            return self.vote(False)

    def vote(self, ok):
        newcomer = self.store.check([f"roll call {self.store.add('closed', 0)}"])
        against = self.state[0].new_tensor([float(newcomer or not ok)])
        dist.all_reduce(against)  # over the ranks of this replica
        if not against.item():
            self.remade.add(against)
            dist.all_reduce(against)
        return not against.item()

    def regroup(self, steps):
        """Meet whoever comes, and take over the state of one that is ahead. Returns the steps that it has made."""
        while True:
            self.remade.hang_up(self.generation)
            called = [self.roll_call() if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(called)
            self.generation, self.members = called[0]
            copies, made = [*map(torch.clone, self.state)], self.state[0].new_zeros(len(self.members) + 1).float()
            made[self.members.index(self.config.replica)] = steps
            try:
                self.remade.meet(self.generation, self.members)
                self.remade.add(made)
                for copy in copies if made[:-1].min() < made.max() else ():
                    self.remade.copy(copy, int(made.argmax()))
            except RuntimeError:
                made[-1] = 1
            dist.all_reduce(failed := made[-1:])
            if not failed.item():
                torch._foreach_copy_(self.state, copies)
                return int(made.max())

    def roll_call(self):
        """Its number, and the replicas that came."""
        while True:
            place = self.store.add(f"roll call {(number := self.store.add('closed', 0))}", 1)
            self.store.set(f"roll call {number} {place}", str(self.config.replica))
            if place == 1:
                time.sleep(ROLL_CALL_SECONDS)
                self.store.add("closed", 1)  # who comes now is in the next one
                places = range(1, self.store.add(f"roll call {number}", 0) + 1)
                self.store.set(f"came {number}", b" ".join(self.store.get(f"roll call {number} {k}") for k in places))
            members = sorted(map(int, self.store.get(f"came {number}").split()))
            if self.config.replica in members and len(members) >= self.config.least:
                return number, members


if __name__ == "__main__":
    store = dist.TCPStore("0.0.0.0", int(sys.argv[1]), is_master=True, wait_for_workers=False)
    signal.pause()
