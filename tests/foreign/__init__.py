"""Foreign programs: training scripts in the manner of well-known projects, which know nothing of the recorder.

`python -m tests.foreign` runs each plain and recorded under torchrun, and compares them.
"""
