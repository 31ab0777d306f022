"""What `make` calls. Nothing imports these modules."""
