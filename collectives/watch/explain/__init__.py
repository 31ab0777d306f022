"""Records of other tools, read and explained: dumps of the flight recorder, logs, traces."""
