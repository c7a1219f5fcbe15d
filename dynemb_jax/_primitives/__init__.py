"""JAX primitives of the engine's verbs: shapes, lowering and batching, no mathematics."""
