"""Ranks beyond this kernel: the same functions on several hosts, and jobs that somebody else started.

from collectives import jobs
with jobs.Hosts(2) as hosts:                 # two hosts made of namespaces, on this machine
    jobs.run(fn, hosts, world_size=4)
jobs.run(fn, ipyparallel.Client())           # engines, on whatever machines they are

torchrun --nproc-per-node 4 -m collectives.watch train.py
jobs.load("records/train-20270101-120000")     # that job, as a Run
"""

from .lazy import lazy

__all__ = lazy(
    __name__,
    {
        "collectives.remote.engines": "EngineError",
        "collectives.remote.hosts": "Hosts HostsUnavailable NoHosts",
        "collectives.remote.destinations": "run use",
        "collectives.watch.record": "Record load",
    },
)

if __name__ == "__main__":  # torchrun -m collectives.jobs
    from .watch.__main__ import main

    main()
