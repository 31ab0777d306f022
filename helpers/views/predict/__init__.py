"""`predict()`: predict the ranks' tensors, then see them."""
