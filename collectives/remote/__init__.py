"""Ranks on other hosts: the same functions on hosts made of namespaces, on engines, and as a torchrun program."""
