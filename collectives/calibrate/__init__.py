"""A cluster's own reports next to the prices of its collectives, and a machine fitted to them."""
