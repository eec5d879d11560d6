"""Drawings of records: accuracy by age, learning curves, error by task, sweeps. Equal records give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from remem.errors import BadInput
from remem.experiments.records import Record
from remem.experiments.tables import Runs, Table

# Okabe and Ito's colours, told apart with any colour vision; their yellow is left out, too pale for lines on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# lines and marks differ too, for print without colour
LINES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "text.usetex": False,
    "text.parse_math": False,  # a method's name may hold a dollar sign
    "svg.fonttype": "none",  # text stays text: small files, words one can search
    "svg.hashsalt": "remem",  # else element names are drawn at random
    "pdf.fonttype": 42,
}
UNDATED = {"svg": {"Date": None}, "svgz": {"Date": None}, "pdf": {"CreationDate": None}}

# the panels drawn unless others are named, where a run records them
PANELS = {
    "accuracy": "validation accuracy (%)",
    "error": "mean validation error (%)",
    "loss_recollection": "recollection loss (nats)",
    "slot_spread": "slot spread (relative)",
    "write_entropy": "write entropy (nats)",
    "read_entropy": "read entropy (nats)",
}
FAILED_ABOVE = 5.0  # as in tasks/babi.py, which would bring torch with it
LEAST_QUESTIONS = 10  # a seed: ages that fewer are asked about are left to the table, where they are counted
Curves = dict[str, dict[str, list[tuple[list[float], list[float]]]]]  # metric -> method -> steps and values of each run


def save(figure: Figure, path: Path) -> None:
    """Write a drawing in the format its name ends in; missing folders are made."""
    suffix = path.suffix.lower().removeprefix(".")
    # matplotlib writes pgf through an installed TeX alone
    known = sorted(set(figure.canvas.get_supported_filetypes()) - {"pgf"})
    if suffix not in known:
        raise BadInput(f"A drawing can't be written to {str(path)!r}; let the name end in one of: {', '.join(known)}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with rc_context(STYLE):
            figure.savefig(path, format=suffix, metadata=UNDATED.get(suffix))
    except OSError as error:
        raise BadInput(f"The drawing can't be written to {path} ({error}).") from None


def draw_forgetting(table: Table) -> Figure:
    """Accuracy by age: a line for each method, with a band of one standard deviation over its seeds."""
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.add_subplot()
        ends: list[float] = []
        looks = _looks(table["seeds"])
        for method, look in looks.items():
            cells = [row["cells"][method] for row in table["rows"]]
            least = min(LEAST_QUESTIONS, max(cell["questions"] / max(cell["n"], 1) for cell in cells))
            ages = (sum(row["age"]) / 2 for row in table["rows"])
            points = zip(ages, cells, strict=True)
            ends += _line(axes, look, [(age, cell) for age, cell in points if cell["questions"] >= least * cell["n"]])
        # at least 20 points high, so that noise does not look like forgetting
        slack = max(2.0, (20 - (max(ends) - min(ends))) / 2)
        top = min(101.0, max(ends) + slack)
        bottom = max(-1.0, min(min(ends) - slack, top - 20))
        axes.set_ylim(bottom, max(top, bottom + 20))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        bins = f", in bins of {table['bin_width']}" if table["bin_width"] > 1 else ""
        _label(axes, f"age of the evidence (segments read since{bins})", "test accuracy (%)")
        axes.set_title(f"Accuracy by age of the evidence: {table['task']}")
        _legend(figure, looks)
    return figure


def draw_sweep(table: Table) -> Figure:
    """A test metric by the values of a setting: a line for each method, with a band of one standard deviation."""
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.add_subplot()
        values = [row["value"] for row in table["rows"]]
        # words stand side by side
        places = values if all(type(value) in (int, float) for value in values) else list(range(len(values)))
        looks = _looks(table["seeds"])
        for method, look in looks.items():
            _line(axes, look, [(x, row["cells"][method]) for x, row in zip(places, table["rows"], strict=True)])
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, -1.0), min(top, 101.0))  # a band may pass what a share in percent can be
        axes.set_xticks(places, [str(value) for value in values])
        _label(axes, table["label"], f"test {table['metric']} (%)")
        axes.set_title(f"Test {table['metric']} by {table['label']}: {table['task']}")
        _legend(figure, looks)
    return figure


def _line(axes: Axes, look: dict[str, Any], points: list[tuple[float, dict[str, Any]]]) -> list[float]:
    """Means with a band of one standard deviation over seeds, where there are any; returns the ends of the band."""
    filled = [(x, cell["mean"], cell["std"] or 0.0) for x, cell in points if cell["n"]]
    xs, means = [x for x, _, _ in filled], [mean for _, mean, _ in filled]
    low, high = [mean - std for _, mean, std in filled], [mean + std for _, mean, std in filled]
    axes.plot(xs, means, linewidth=1.6, markersize=4, **look)
    if low != high:
        axes.fill_between(xs, low, high, color=look["color"], alpha=0.18, linewidth=0)
    return low + high


def draw_curves(task: str, runs: Runs, metrics: tuple[str, ...] = ()) -> Figure:
    """Learning curves: a panel for each metric, a thin line for each run, a colour for each method."""
    lines = curves(runs)
    missing = [metric for metric in metrics if metric not in lines]
    if missing:
        raise BadInput(f"None of the runs records {missing[0]!r}. There are: {', '.join(lines)}.")
    panels = metrics or tuple(metric for metric in PANELS if metric in lines)
    if not panels:
        raise BadInput(f"The runs record none of the usual metrics; name some with --metrics: {', '.join(lines)}.")
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(3.6 * columns, 2.3 * rows + 0.7), layout="constrained")
        looks = _looks(runs, marks=(".",))
        for number, metric in enumerate(panels, start=1):
            axes = figure.add_subplot(rows, columns, number)
            for method, of_method in lines[metric].items():
                for steps, values in of_method:
                    axes.plot(steps, values, linewidth=0.8, markersize=3, **looks[method])
            _label(axes, "steps", PANELS.get(metric, metric.replace("_", " ")))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        figure.suptitle(f"Learning curves: {task}", fontsize=10)
        _legend(figure, looks)
    return figure


def curves(runs: Runs) -> Curves:
    """Every metric of the runs' histories that is a number; refused, with its file's name, where there is none."""
    found: Curves = {}
    for method, group in runs.items():
        for path, record in group:
            history = _history(path, record)
            for metric in dict.fromkeys(name for entry in history for name in entry if name != "step"):
                points = [(e["step"], e[metric]) for e in history if isinstance(e.get(metric), int | float)]
                # a loss that a method does without is recorded as 0 throughout
                if points and not (metric.startswith("loss") and not any(value for _, value in points)):
                    line = ([step for step, _ in points], [value for _, value in points])
                    found.setdefault(metric, {}).setdefault(method, []).append(line)
    return found


def _history(path: Path, record: Record) -> list[dict[str, Any]]:
    history = record.get("history")
    entries: list[dict[str, Any]] = history if isinstance(history, list) else []
    if not entries or not all(isinstance(entry, dict) and isinstance(entry.get("step"), int) for entry in entries):
        raise BadInput(f"{path} holds no learning curve ('history' with steps); train that run again, or leave it out.")
    return entries


def draw_parts(table: Table) -> Figure:
    """Test error of each bAbI task: a mark for each method, with one standard deviation over its seeds."""
    with rc_context(STYLE):
        parts = [row["part"] for row in table["rows"]]
        figure = Figure(figsize=(6.0, 0.28 * len(parts) + 1.6), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(FAILED_ABOVE, color="0.5", linestyle=":", linewidth=1)
        axes.annotate(" failed", (FAILED_ABOVE, 1), xycoords=("data", "axes fraction"), va="bottom", color="0.4")
        looks = {method: {**look, "linestyle": "none"} for method, look in _looks(table["seeds"]).items()}
        for number, (method, look) in enumerate(looks.items()):
            shift = 0.6 * ((number + 0.5) / len(looks) - 0.5)  # methods with equal errors stay apart
            for height, row in enumerate(table["rows"]):
                cell = row["cells"][method]
                if cell["n"]:
                    error = cell["std"] or 0.0
                    axes.errorbar(cell["mean"], height + shift, xerr=error, markersize=4, elinewidth=1, **look)
        axes.set_yticks(range(len(parts)), parts)
        axes.set_ylim(len(parts) - 0.5, -0.5)
        axes.set_xlim(left=min(-0.5, axes.get_xlim()[0]))
        _label(axes, "test error (%)", "")
        axes.set_title(f"Error by task: {table['task']}", pad=16)  # clear of the word above the line
        _legend(figure, looks)
    return figure


def _looks(methods: Iterable[str], marks: tuple[str, ...] = MARKS) -> dict[str, dict[str, Any]]:
    """Colour, line and mark of each method, by its place: the same in every drawing of the same methods."""
    return {
        method: {
            "color": COLOURS[place % len(COLOURS)],
            "linestyle": LINES[place % len(LINES)],
            "marker": marks[place % len(marks)],
        }
        for place, method in enumerate(methods)
    }


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _legend(figure: Figure, looks: dict[str, dict[str, Any]]) -> None:
    """Below the drawing, where long names cover nothing."""
    handles = [Line2D([], [], label=method, markersize=4, **look) for method, look in looks.items()]
    columns = 1 if max(map(len, looks)) > 24 else min(3, len(handles))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
