"""Evidence on a job, gathered from all its hosts into one folder."""
