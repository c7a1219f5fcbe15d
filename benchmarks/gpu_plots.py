"""Draws the CSVs of a GPU run as they are: no figure is computed here."""

import pathlib
from typing import Any

import gpu_report
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

OURS, XLA, FLOOR, MUST = "tab:blue", "tab:orange", "black", "tab:red"
Row = dict[str, Any]


def draw(folder: pathlib.Path) -> None:
    """Draws a PNG beside each CSV that is there."""
    plots = {
        "step": draw_steps,
        "bounded": draw_bounded,
        "collections": draw_steps,
        "index": draw_index,
        "growth": draw_growth,
    }
    for name, plot in plots.items():
        if lines := gpu_report.read(folder / f"{name}.csv"):
            plot(lines, folder / f"{name}.png")


def _source(line: Row, what: str) -> str:
    return f"{what}\n{line['device']}, jax {line['jax']}, commit {line['commit']}, {line['date']}"


def _finish(figure: Any, path: pathlib.Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_steps(lines: list[Row], path: pathlib.Path) -> None:
    """One group a case and operation: ours, XLA's, the bytes alone, and the target."""
    columns = ("case", "op", "optimizer", "dim", "dtype")
    groups = list(dict.fromkeys(tuple(line[c] for c in columns) for line in lines))
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.5 * len(groups)), layout="constrained")
    for place, (variant, color, label) in enumerate(
        [("dynemb", OURS, "dynemb_jax"), ("xla", XLA, "XLA, table of fixed height")]
    ):
        some = [line for line in lines if line["variant"] == variant]
        y = [groups.index(tuple(x[c] for c in columns)) + (place - 0.5) * 0.38 for x in some]
        values = [float(line["piped_ms"]) for line in some]
        bars = axes.barh(y, values, 0.38, color=color, label=label)
        axes.bar_label(bars, [f"{v:.3f}" for v in values], padding=3, fontsize=8)
    first = {tuple(x[c] for c in columns): x for x in reversed(lines)}
    floors = [float(first[group]["floor_ms"]) for group in groups]
    label = "bytes that must move / copy rate"
    axes.vlines(floors, *_spans(len(groups)), FLOOR, linewidths=2, label=label)
    goals = [
        (place, gpu_report.MUST_MS[goal])
        for place, (case, op, optimizer, dim, dtype) in enumerate(groups)
        if (goal := (case, op, int(dim), optimizer)) in gpu_report.MUST_MS and dtype == "float32"
    ]
    _targets(axes, goals)
    names = [
        f"{case} {op}, {optimizer}, D {dim}" + ("" if dtype == "float32" else f", {dtype}")
        for case, op, optimizer, dim, dtype in groups
    ]
    axes.set_yticks(range(len(groups)), names, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel("ms a step, piped (less is better)")
    axes.set_title(_source(lines[0], "Whole steps through jax.jit"), fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    _finish(figure, path)


def draw_bounded(lines: list[Row], path: pathlib.Path) -> None:
    """Steps of full tables that forget, beside those of a table that grows."""
    groups = list(dict.fromkeys((line["optimizer"], line["dim"]) for line in lines))
    variants = list(dict.fromkeys(line["variant"] for line in lines))
    figure, axes = plt.subplots(figsize=(8, 1.5 + 0.8 * len(groups)), layout="constrained")
    height = 0.8 / len(variants)
    for place, variant in enumerate(variants):
        some = [line for line in lines if line["variant"] == variant]
        y = [
            groups.index((x["optimizer"], x["dim"])) + (place - (len(variants) - 1) / 2) * height
            for x in some
        ]
        bars = axes.barh(y, [float(x["piped_ms"]) for x in some], height, label=variant)
        axes.bar_label(bars, [f"{float(x['piped_ms']):.3f}" for x in some], padding=3, fontsize=8)
    axes.set_yticks(range(len(groups)), [f"{name}, D {dim}" for name, dim in groups], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("ms a step, piped (less is better)")
    title = "Full tables, 1 % of each batch new keys"
    axes.set_title(_source(lines[0], title), fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    _finish(figure, path)


def _spans(count: int) -> tuple[list[float], list[float]]:
    return [i - 0.42 for i in range(count)], [i + 0.42 for i in range(count)]


def draw_index(lines: list[Row], path: pathlib.Path) -> None:
    """Rates of the hash table alone, and the time of a doubling."""
    rates = [x for x in lines if x["case"] == "index" and not x["op"].startswith("double")]
    doublings = [x for x in lines if x["op"].startswith("double")]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, 1.5 + 0.3 * max(len(rates), 5)), layout="constrained",
        width_ratios=(2, 1),
    )  # fmt: skip
    names = [_name(line) for line in rates]
    bars = left.barh(names, [float(line["rate"]) for line in rates], color=OURS)
    left.bar_label(bars, [f"{float(x['rate']):.1f}" for x in rates], padding=3, fontsize=8)
    floors = [float(x["rate"]) * float(x["step_ms"]) / float(x["floor_ms"]) for x in rates]
    low, high = _spans(len(rates))
    left.vlines(floors, low, high, FLOOR, linewidths=2, label="bytes that must move / copy rate")
    _targets(left, _goals(rates))
    left.set_xlabel("10⁹ keys/s (more is better)")
    left.set_title(_source(lines[0], f"Hash table alone, {int(rates[0]['n']):,} keys a call"),
                   fontsize=10)  # fmt: skip
    names = [f"{x['op']}, {_clock(x)}\n{int(x['keys_per_table']) / 1e6:.1f} M keys, "
             f"load {float(x['load']):.2f}" for x in doublings]  # fmt: skip
    bars = right.barh(names, [float(line["step_ms"]) for line in doublings], color=OURS)
    right.bar_label(bars, [f"{float(x['step_ms']):.2f}" for x in doublings], padding=3, fontsize=8)
    _targets(right, _goals(doublings))
    right.set_xlabel("ms (less is better)")
    right.set_title("Doubling of the index", fontsize=10)
    for axes in (left, right):
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelsize=8)
        axes.margins(x=0.12)
    left.legend(frameon=False, fontsize=8, loc="lower right")
    _finish(figure, path)


def _name(line: Row) -> str:
    dim = f", D {line['dim']}" if int(line["dim"]) else ""
    hits = float(line["hit_rate"])
    return f"{line['op']}{dim}, load {float(line['load']):.2f}, {hits:.0%} known"


def _clock(line: Row) -> str:
    return "wall time" if line["timing"] == "host" else "device time"


def _goals(lines: list[Row]) -> list[tuple[int, float]]:
    goals = [(place, gpu_report.must(line)) for place, line in enumerate(lines)]
    return [(place, float(goal[0].split()[0])) for place, goal in goals if goal]


def _targets(axes: Any, goals: list[tuple[int, float]]) -> None:
    if goals:
        low, high = [place - 0.42 for place, _ in goals], [place + 0.42 for place, _ in goals]
        values = [value for _, value in goals]
        axes.vlines(values, low, high, MUST, linestyles="dotted", linewidths=2, label="target")


def draw_growth(lines: list[Row], path: pathlib.Path) -> None:
    """Time of each step beside the same step with room made before; memory after each."""
    rows = [int(x["rows"]) / 1e6 for x in lines]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    left.plot(rows, [float(x["grown_ms"]) for x in lines], "o-", color=OURS, label="grows")
    left.plot(rows, [float(x["roomy_ms"]) for x in lines], "s--", color="gray",
              label="the same steps, room made beforehand")  # fmt: skip
    for at, line in zip(rows, lines, strict=True):
        if int(line["doublings"]) > 0:
            left.axvline(at, color=MUST, alpha=0.25, linewidth=4)
    left.plot([], [], color=MUST, alpha=0.25, linewidth=4, label="the index doubles")
    left.set_ylim(bottom=0)
    left.set_ylabel("ms a step, synchronised")
    first = lines[0]
    what = f"A table grows by {int(first['ids_per_step']):,} new keys a step, D {first['dim']}"
    left.set_title(_source(first, what), fontsize=10)
    index = [float(x["index_mib"]) / 1024 for x in lines]
    both = [i + float(x["rows_mib"]) / 1024 for i, x in zip(index, lines, strict=True)]
    right.fill_between(rows, index, color=XLA, alpha=0.5, step="pre", label="index")
    right.fill_between(rows, index, both, color=OURS, alpha=0.5, step="pre", label="rows")
    if float(lines[-1]["device_mib"]) > 0:
        for column, style, label in (
            ("device_mib", "k-", "taken from the card, after the step"),
            ("peak_mib", "r:", "at most during the step"),
        ):
            values = [float(x[column]) / 1024 for x in lines]
            right.step(rows, values, style, where="pre", label=label)
    right.set_ylabel("GiB of device memory")
    right.set_title("Memory of the table", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("10⁶ rows in the table")
        axes.legend(frameon=False, fontsize=8)
    _finish(figure, path)
