"""A table that fills from nothing by whole training steps: time and memory of each step."""

import dataclasses
import gc
import statistics

import gpu_cases
import gpu_driver
import gpu_dynemb
import gpu_timing
import jax
import jax.numpy as jnp

import dynemb_jax as dj

DIM = 64
FILLS = 3
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Growth:
    """One line of growth.csv: a step that brings ids_per_step new keys.

    grown_ms is the median over the fills; roomy_ms that of the same step on a table that had its
    room from the start. Memory: device_mib is what the card says after the step, peak_mib counts
    the scratch of the step as well (both 0 where there is no card to ask).
    """

    dim: int
    ids_per_step: int
    step: int
    rows: int
    capacity: int
    doublings: int
    grown_ms: float
    roomy_ms: float
    index_mib: float
    rows_mib: float
    device_mib: float
    peak_mib: float
    rows_copied: int


class Memory:
    """Device memory that tables took since the start."""

    def __init__(self, driver: gpu_driver.Driver | None):
        self._driver = driver
        self._before = driver.used_bytes() - driver.pool_bytes()[0] if driver else 0

    def step_begins(self) -> None:
        """The scratch of the next step is counted from here."""
        if self._driver:
            self._driver.forget_peak()

    def step_ended(self) -> tuple[float, float]:
        """MiB of the tables now, and with the scratch that the step used."""
        if not self._driver:
            return 0.0, 0.0
        scratch, scratch_peak = self._driver.pool_bytes()
        tables = self._driver.used_bytes() - scratch - self._before
        return tables / MIB, (tables + scratch_peak) / MIB


def _fill(
    scale: gpu_cases.Scale, roomy: bool, driver: gpu_driver.Driver | None
) -> tuple[list[float], list[tuple[dj.TableStats, float, float]]]:
    """One fill: the time of each step, and table and memory after it."""
    rows = scale.growth_steps * scale.ids
    config = dj.TableConfig(
        "items",
        DIM,
        optimizer=dj.optimizers.sgd(gpu_cases.LEARNING_RATE),
        # A step more: no call has to look whether its keys still fit.
        initial_rows=rows + scale.ids if roomy else 0,
    )
    grads = jnp.ones((scale.ids, DIM))
    batches = [
        gpu_cases.spread(1, [jnp.arange(scale.ids, dtype=jnp.int32) + step * scale.ids])[0]
        for step in range(scale.growth_steps)
    ]
    jax.block_until_ready((grads, batches))
    memory = Memory(driver)
    emb = dj.create(dj.FeatureConfig(config))
    step = gpu_dynemb.train.lower(emb, batches[0], grads).compile()
    times, after = [], []
    for keys in batches:
        memory.step_begins()

        def run(keys: dj.Keys = keys) -> object:
            nonlocal emb
            emb, activations = step(emb, keys, grads)
            return emb, activations

        times.append(gpu_timing.wall_ms(run))
        after.append((dj.stats(emb)["items"], *memory.step_ended()))
    dj.close(emb)
    gc.collect()
    return times, after


def measure(scale: gpu_cases.Scale, driver: gpu_driver.Driver | None) -> list[Growth]:
    """Fills tables in turn, growing ones and roomy ones; the first of each is not counted."""
    grown, roomy, after = [], [], []
    for turn in range(1 + FILLS):
        roomy_ms, _ = _fill(scale, roomy=True, driver=None)
        grown_ms, after = _fill(scale, roomy=False, driver=driver)
        if turn > 0:
            roomy.append(roomy_ms)
            grown.append(grown_ms)
    lines, growths = [], 0
    for step, (stats, device_mib, peak_mib) in enumerate(after):
        assert stats.rows == (step + 1) * scale.ids, "every key of a step is new"
        lines.append(
            Growth(
                dim=DIM,
                ids_per_step=scale.ids,
                step=step + 1,
                rows=stats.rows,
                capacity=stats.capacity,
                doublings=stats.growths - growths,
                grown_ms=round(statistics.median(one[step] for one in grown), 3),
                roomy_ms=round(statistics.median(one[step] for one in roomy), 3),
                index_mib=round(stats.index_bytes / MIB, 1),
                rows_mib=round(stats.row_bytes / MIB, 1),
                device_mib=round(device_mib, 1),
                peak_mib=round(peak_mib, 1),
                rows_copied=stats.rows_copied,
            )
        )
        growths = stats.growths
    return lines


def peak_over_final(lines: list[Growth]) -> float:
    """The largest memory of any step over that of the filled table; 0 without a card."""
    final = lines[-1].device_mib
    return max(line.peak_mib for line in lines) / final if final else 0.0
