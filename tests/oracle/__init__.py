"""The judge: a table written as a dictionary, in float64, sharing no code with the library."""
