"""The contents of the sandbox: this folder, Python and torch, and nothing else of the course.

A rank (sandboxed_rank.py) has one socket, to the scorer, which is the network (../switch.py): what it sends others is known.
"""
