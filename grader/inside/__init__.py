"""The contents of the sandbox: this folder, Python and torch, and nothing else of the course.

Submitted code runs here (sandboxed_rank.py), and the rank's only way out is one socket, to the scorer.  The scorer is the network
(../switch.py), so an answer's messages to other ranks are known without asking it.
"""
