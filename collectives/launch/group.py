"""The process group in which a rank meets its peers: gloo's, or a replacement on a different backend and device."""

import os
from datetime import timedelta
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from ..log.backends import GLOO
from .wire import RankSpec

TIMEOUT = timedelta(days=1)  # the kernel keeps the time, so the backend doesn't have to
_store: dist.Store | None = None  # by which the ranks have met


def join(spec: RankSpec) -> None:
    """Join the peers' gloo group."""
    global _store
    address = urlsplit(spec.rendezvous)
    if address.scheme == "tcp":
        store = dist.TCPStore(address.hostname, address.port, is_master=False, wait_for_workers=False)
        _store = dist.PrefixStore(address.path, store)
    else:
        _store = dist.FileStore(spec.rendezvous, spec.world_size)
    _init(spec, GLOO.name, _store)


def join_anew(spec: RankSpec, backend: str | None, device: str | None) -> None:
    """Replace the gloo group by one of this backend, and make tensors on this kind of device from here on.

    backend, device: as of `run`.  Raises RuntimeError where there is no such device.
    """
    place = None
    if device not in (None, "cpu"):
        place = _place(device)
        torch.get_device_module(place).set_device(place)
        torch.set_default_device(place)
    if backend not in (None, GLOO.name):
        dist.destroy_process_group()
        _init(spec, backend, dist.PrefixStore("anew", _store), device_id=place)


def _place(device: str) -> torch.device:
    """This rank's device: ranks of a host share its devices."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None or kind.type != torch.device(device).type:
        raise RuntimeError(f"there is no {device} here: torch finds {kind or 'the CPU alone'}.")
    return torch.device(kind.type, int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())


def _init(spec: RankSpec, backend: str, store: dist.Store, **about) -> None:
    size = spec.world_size
    dist.init_process_group(backend, store=store, rank=spec.rank, world_size=size, timeout=TIMEOUT, **about)
