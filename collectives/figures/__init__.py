"""Figures that play in a browser: a run or a schedule step by step, a pipeline whose ranks and costs can be changed."""
