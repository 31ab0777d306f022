"""A notebook's views beyond the picture of a run: played, asked, on a time axis, and maps of what it is based on."""

from collectives.lazy import lazy

__all__ = lazy(__name__, {".family": "family", ".maps": "global_tensor nodes rendezvous"})
