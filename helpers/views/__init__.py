"""What a notebook shows beyond the picture of a run: played, asked, on a time axis, and maps of the ground it stands on."""

from collectives.lazy import lazy

__all__ = lazy(__name__, {".family": "family", ".maps": "global_tensor nodes rendezvous"})
