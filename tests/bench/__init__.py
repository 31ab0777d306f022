"""What `make bench` and `make mistakes` measure and write; tests import little of it."""
