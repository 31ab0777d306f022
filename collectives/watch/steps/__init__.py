"""When it happened: the timeline of a run, and how the ranks of a job spend their training steps."""
