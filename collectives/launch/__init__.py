"""`run()`: real ranks for every call."""
