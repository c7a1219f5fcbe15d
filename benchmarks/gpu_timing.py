"""How steps are timed: variants in turn, synchronised and piped."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import gpu_cases
import jax
import jax.numpy as jnp

DISAGREEMENT = 1e-2  # of rows after the same steps; above it the variants differ

Run = Callable[[int], Any]  # takes the number of the step, returns its arrays


@dataclasses.dataclass
class Times:
    """Milliseconds of one variant."""

    synchronised: list[float] = dataclasses.field(default_factory=list)
    piped: list[float] = dataclasses.field(default_factory=list)  # a step, mean of a round

    def columns(self) -> dict[str, float | int]:
        """The columns of the CSV."""
        return {
            "step_ms": statistics.median(self.synchronised),
            "piped_ms": statistics.median(self.piped),
            "min_ms": min(self.synchronised),
            "repeats": len(self.synchronised),
        }


def warm_up(runs: Mapping[str, Run], steps: int) -> None:
    """Does steps 0, 1, ... of each variant."""
    for run in runs.values():
        last = None
        for i in range(steps):
            last = run(i)
        jax.block_until_ready(last)


def in_turn(
    runs: Mapping[str, Run], scale: gpu_cases.Scale, step: int, piped: int
) -> tuple[dict[str, Times], dict[str, Any]]:
    """Times the variants round by round; also returns what each one's last step returned.

    All do the same steps in the same order, from number `step` on: step i of one and of the other
    read the same batch.
    """
    times = {name: Times() for name in runs}
    last: dict[str, Any] = {}
    for _ in range(scale.rounds):
        first_piped = step + 1 + scale.synchronised
        for name, run in runs.items():
            # One that is not counted: the other variant has just used the caches.
            jax.block_until_ready(run(step))
            for i in range(step + 1, first_piped):
                start = time.perf_counter()
                jax.block_until_ready(run(i))
                times[name].synchronised.append((time.perf_counter() - start) * 1e3)
            start = time.perf_counter()
            for i in range(first_piped, first_piped + piped):
                last[name] = run(i)
            jax.block_until_ready(last[name])
            times[name].piped.append((time.perf_counter() - start) / piped * 1e3)
        step = first_piped + piped
    return times, last


@jax.jit
def _distance(ours: Any, theirs: Any) -> tuple[jax.Array, jax.Array]:
    pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    apart = sum(jnp.sum((a - b) ** 2) for a, b in pairs)
    size = sum(jnp.sum(b**2) for _, b in pairs)
    return jnp.sqrt(apart), jnp.sqrt(size)


def disagreement(ours: Any, theirs: Any) -> float:
    """Relative distance of two variants' rows after the same steps.

    Sums are in different orders, and Adam makes a full step of a sum that nearly cancels: expect
    1e-4, not 0.
    """
    apart, size = jax.device_get(_distance(ours, theirs))
    return float(apart) / max(float(size), 1e-30)


def wall_ms(run: Callable[[], Any]) -> float:
    """Milliseconds of one call, its JAX results included."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return (time.perf_counter() - start) * 1e3
