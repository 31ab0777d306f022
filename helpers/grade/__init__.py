"""Grades exercises:   python -m helpers.grade exercises/01_distributed_mean.ipynb [--watch]"""
