"""`predict()`: say what the ranks will hold, then see it."""
