"""The release that this is: records, verdicts and reports name it."""

__version__ = "0.1.0"
