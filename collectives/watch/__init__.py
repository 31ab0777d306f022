"""The program around a training script: records its communication, and reports why it hangs.

torchrun --nproc-per-node 4 -m collectives.watch train.py
"""
