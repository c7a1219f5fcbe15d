"""How many ids find their key in a bounded table, against policies without shortcuts.

    python benchmarks/hit_rate.py [--data ml-100k.inter]     # minutes; else fetches MovieLens-100K
    python benchmarks/hit_rate.py --quick --skip-movielens   # seconds: says only that it runs

hits       ids are looked up in batches, each followed by no update (max_outstanding=1). The exact
           policy sees the same ids one by one and sorts all keys.
           custom scores are the uses of a key since the stream began.
retention  distinct keys are offered once; how many are there at the end.

Writes hit_rate.csv, retention.csv and a plot of each.
"""

import argparse
import dataclasses
import math
import pathlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import exact_policies
import numpy as np
import report
import shapes

import dynemb_jax as dj

ROOT = pathlib.Path(__file__).resolve().parent.parent
DECAY = 50  # lookups after which a use counts half
# Share of the capacity offered -> largest share lost, in percent.
RETENTION_LIMITS = {0.75: 0.003, 0.90: 0.56, 1.00: 3.5}
POINTS = 2.0  # LRU and LFU are to be this close to the exact policy


@dataclasses.dataclass(frozen=True)
class Workload:
    """A stream of ids in batches, and the tables that meet it."""

    name: str
    batches: list[np.ndarray]  # int32
    capacity: int


@dataclasses.dataclass(frozen=True)
class HitRate:
    """One line of hit_rate.csv. Rates in percent of all ids."""

    workload: str
    policy: str
    capacity: int
    distinct: int
    ids: int
    batch: int
    hit_rate: float
    exact_hit_rate: float
    points_below: float
    evicted: int


@dataclasses.dataclass(frozen=True)
class Retention:
    """One line of retention.csv. Shares in percent of the keys offered."""

    bound: str
    capacity: int
    offered: int
    offered_over_capacity: float
    lost: float
    unavoidable: float
    limit: float | None


def zipf_batches(turns: int, batch: int, universe: int, drift: int) -> Iterator[np.ndarray]:
    """Zipf 1.05 over the universe; popular ids move on by `drift` a batch."""
    rng = np.random.default_rng(0)
    for turn in range(turns):
        yield (shapes.zipf_ids(rng, batch, universe, 1.05) + drift * turn).astype(np.int32)


def movielens_batches(path: pathlib.Path | None, column: str, batch: int) -> list[np.ndarray]:
    """Users or items of MovieLens-100K in the order of time."""
    sys.path.append(str(ROOT / "examples"))  # the demo knows where the file comes from
    import movielens_data

    ids = getattr(movielens_data.load(path, history_length=1), column).astype(np.int32)
    return np.array_split(ids, len(ids) // batch)


def uses_so_far(batches: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Custom scores: uses of each id's key since the stream began, in the table or not."""
    counts: Counter[int] = Counter()
    for ids in batches:
        counts.update(ids.tolist())
        yield np.array([counts[key] for key in ids.tolist()], np.uint32)


def decayed(score: float | None, lookup: int, given: int) -> float:
    """log2 of the sum of 2 ** (lookup / DECAY): the decayed count without straight lines."""
    del given
    now = lookup / DECAY
    return now if score is None else max(score, now) + math.log2(1 + 2 ** -abs(score - now))


# name -> policy of the library, and the exact one.
Exact = exact_policies.ExactLru | exact_policies.ExactScore
Policies = dict[str, tuple[Callable[[int], dj.eviction.Policy], Callable[[int], Exact]]]
POLICIES: Policies = {
    "lru": (lambda n: dj.eviction.lru(n), exact_policies.ExactLru),
    "timestamp": (lambda n: dj.eviction.timestamp(n), exact_policies.ExactLru),
    "lfu": (
        lambda n: dj.eviction.lfu(n),
        lambda n: exact_policies.ExactScore(n, lambda score, lookup, given: (score or 0) + 1),
    ),
    "lfu, decay": (
        lambda n: dj.eviction.lfu(n, decay=DECAY),
        lambda n: exact_policies.ExactScore(n, decayed),
    ),
    "custom": (
        lambda n: dj.eviction.custom(n),
        lambda n: exact_policies.ExactScore(n, lambda score, lookup, given: given),
    ),
}


def measure(workload: Workload, policy: str) -> HitRate:
    """Runs one policy on one stream."""
    make, make_exact = POLICIES[policy]
    table = dj.TableConfig("items", 1, eviction=make(workload.capacity))
    emb = dj.create(dj.FeatureConfig(table), max_outstanding=1)
    exact = make_exact(workload.capacity)
    given = uses_so_far(workload.batches)
    for lookup, (ids, scores) in enumerate(zip(workload.batches, given, strict=True), start=1):
        _, emb = dj.lookup(emb, ids, scores=scores if policy == "custom" else None)
        for key, score in zip(ids.tolist(), scores.tolist(), strict=True):
            exact.see(key, lookup, score)
    stats = dj.stats(emb)["items"]
    dj.close(emb)
    ours = 100 * stats.hits / stats.ids
    best = 100 * exact.hits / stats.ids
    return HitRate(
        workload.name,
        policy,
        workload.capacity,
        len(np.unique(np.concatenate(workload.batches))),
        stats.ids,
        len(workload.batches[0]),
        round(ours, 3),
        round(best, 3),
        round(best - ours, 3),
        stats.evicted,
    )


def retain(bound: str, capacity: int, share: float) -> Retention:
    """Offers distinct keys to a table that evicts; counts those that are there afterwards."""
    row = 4 * 4 * 2 + 8  # a padded row of one number, Adagrad, and its stamp
    max_bytes = None
    if bound == "max_bytes":
        buckets = 1 << max(0, math.ceil(math.log2(capacity / 0.85 / 31)))
        max_bytes = buckets * (528 + 260) + capacity * row
    policy = dj.eviction.lru(max_rows=capacity if bound == "max_rows" else None)
    emb = dj.create(
        dj.FeatureConfig(dj.TableConfig("items", 1, eviction=policy, max_bytes=max_bytes)),
        max_outstanding=1,
    )
    offered = round(share * capacity)
    keys = shapes.spread(np.arange(offered))
    for batch in np.array_split(keys, max(1, offered // 4096)):
        _, emb = dj.lookup(emb, dj.keys(batch))
    kept = int(dj.contains(emb, "items", dj.keys(keys)).sum())
    dj.close(emb)
    unavoidable = 100 * max(0.0, 1 - 1 / share)
    return Retention(
        bound,
        capacity,
        offered,
        share,
        round(100 * (1 - kept / offered), 4),
        round(unavoidable, 4),
        RETENTION_LIMITS.get(share),
    )


def plot_hits(path: pathlib.Path, lines: list[HitRate]) -> None:
    """Draws a panel a workload: bars of each policy beside the exact one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(line.workload for line in lines))
    figure, panels = plt.subplots(
        1, len(names), figsize=(3.4 * len(names), 3.6), layout="constrained", squeeze=False
    )
    for axes, name in zip(panels[0], names, strict=True):
        some = [line for line in lines if line.workload == name]
        places = np.arange(len(some))
        ours = axes.bar(places - 0.2, [line.hit_rate for line in some], 0.4, label="dynemb_jax")
        best = axes.bar(places + 0.2, [line.exact_hit_rate for line in some], 0.4, label="exact")
        for bars in (ours, best):
            axes.bar_label(bars, fmt="{:.1f}", padding=2, fontsize=6)
        axes.set_xticks(places, [line.policy for line in some], rotation=30, ha="right")
        axes.set_title(
            f"{name}\n{some[0].capacity:,} rows of {some[0].distinct:,} keys", fontsize=9
        )
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("ids that find their key, %")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


def plot_retention(path: pathlib.Path, lines: list[Retention]) -> None:
    """Draws keys lost over keys offered, with what cannot be kept and what is allowed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    for bound, style in (("max_rows", "o-"), ("max_bytes", "s--")):
        some = [line for line in lines if line.bound == bound]
        shares = [line.offered_over_capacity for line in some]
        axes.plot(shares, [line.lost for line in some], style, label=f"lost, bound by {bound}")
    some = [line for line in lines if line.bound == "max_rows"]
    shares = [line.offered_over_capacity for line in some]
    axes.plot(shares, [line.unavoidable for line in some], "k:", label="cannot fit")
    axes.plot(list(RETENTION_LIMITS), list(RETENTION_LIMITS.values()), "rv", label="allowed")
    axes.set_xlabel("distinct keys offered / rows")
    axes.set_ylabel("keys lost, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


def workloads(quick: bool, movielens: bool, path: pathlib.Path | None) -> list[Workload]:
    """Streams of different kinds."""
    turns, batch, universe, capacity = (20, 256, 5000, 512) if quick else (400, 1024, 100_000, 8192)
    streams = [
        Workload("zipf 1.05", list(zipf_batches(turns, batch, universe, 0)), capacity),
        Workload("zipf 1.05, drifting", list(zipf_batches(turns, batch, universe, 20)), capacity),
    ]
    if movielens:
        streams += [
            Workload("MovieLens items", movielens_batches(path, "item", 64), 420),
            Workload("MovieLens users", movielens_batches(path, "user", 64), 240),
        ]
    return streams


def main() -> None:
    """Runs everything and writes the results."""
    parser = argparse.ArgumentParser(description="Hit rates against exact policies; retention.")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a smoke test")
    parser.add_argument("--skip-movielens", action="store_true", help="synthetic streams only")
    parser.add_argument("--data", type=pathlib.Path, help="ml-100k.inter or u.data; else fetched")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the CSVs and plots")
    args = parser.parse_args()
    here = pathlib.Path(__file__).parent
    out = args.out or (here.parent / "build/bench" if args.quick else here / "results/cpu")

    hits = []
    for workload in workloads(args.quick, not args.skip_movielens, args.data):
        for policy in POLICIES:
            line = measure(workload, policy)
            hits.append(line)
            print(
                f"{line.workload:<22}{line.policy:<12}{line.hit_rate:7.2f} % hits, exact "
                f"{line.exact_hit_rate:6.2f} %: {line.points_below:+.2f} points below",
                flush=True,
            )
    capacity = 5000 if args.quick else 200_000
    retained = [
        retain(bound, capacity, share)
        for bound in ("max_rows", "max_bytes")
        for share in (0.5, 0.75, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25)
    ]
    for line in retained:
        limit = "" if line.limit is None else f", allowed {line.limit} %"
        print(
            f"{line.bound:<10} {line.offered_over_capacity:.2f} x {line.capacity:,} keys offered: "
            f"{line.lost:.4f} % lost, {line.unavoidable:.4f} % cannot fit{limit}"
        )
    report.write_csv(out / "hit_rate.csv", hits)
    report.write_csv(out / "retention.csv", retained)
    plot_hits(out / "hit_rate.png", hits)
    plot_retention(out / "retention.png", retained)
    far = [line for line in hits if line.policy in ("lru", "lfu") and line.points_below > POINTS]
    lost = [line for line in retained if line.limit is not None and line.lost > line.limit]
    for line in [*far, *lost]:
        print(f"missed: {line}")
    print(f"written: {out}")


if __name__ == "__main__":
    main()
