"""Custom derivatives: the mathematics first, the code in the same order."""
