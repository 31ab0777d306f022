"""The contents of the sandbox: this folder, Python and torch, and nothing else of the course.

Submitted code runs here (rank.py), and the rank's only way out is one socket, to the scorer.  The scorer is the network
(../switch.py), so what an answer says to other ranks is known without asking it.
"""
