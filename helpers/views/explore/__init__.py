"""`explore()`: every collective under your hands."""
