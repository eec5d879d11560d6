"""Tables in README and docs, made from records: what stands between `<!-- MARK -->` and `<!-- end -->`.

python -m remem.experiments.pages    # in the repository: all of them and the drawings; a test holds the tables
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from remem.errors import BadInput
from remem.experiments import horizon
from remem.experiments.ablations import find_ablation, make_rows
from remem.experiments.describe import format_description
from remem.experiments.describe import read as read_description
from remem.experiments.forgetting import format_forgetting, make_forgetting
from remem.experiments.paper import TABLE_METRICS
from remem.experiments.presets import PRESETS
from remem.experiments.records import read_record, read_records
from remem.experiments.sweeps import format_sweep, make_sweep, tabulate
from remem.experiments.tables import (
    Runs,
    format_brief,
    format_lines,
    format_parts,
    format_table,
    make_parts,
    make_table,
    ordered,
)
from remem.experiments.trials import (
    folder_of,
    format_parts_after,
    format_rehearsed,
    format_steps,
    format_trials,
    format_variants,
    format_watched,
)
from remem.experiments.variation import leaves

_BLOCK = re.compile(r"(<!-- (?P<mark>[^>]+?) -->\n)(?P<body>(?:(?!<!--).)*)(<!-- end -->)", flags=re.DOTALL)
_FIGURES = ("way", "ms_per_step", "streams_per_second", "times_eager", "peak_memory_mb")
# made by other means, with tests of their own
OTHERS = ("examples/own_memory.py", "remem bench service")


def refresh(text: str, results: Path) -> str:
    """The page with every table as the records have it now."""

    def made(found: re.Match[str]) -> str:
        body = found["body"] if found["mark"] in OTHERS else render(found["mark"], results) + "\n"
        return found[1] + body + found[4]

    return _BLOCK.sub(made, text)


def marks(text: str) -> list[str]:
    """The marks of a page's tables, in turn."""
    return [found["mark"] for found in _BLOCK.finditer(text) if found["mark"] not in OTHERS]


def render(mark: str, results: Path) -> str:
    """One table by its mark: a command, or the name of a table and what it is of."""
    for start, make in _MAKERS.items():
        if mark == start or mark.startswith(start + " "):
            return make(results, mark.removeprefix(start).split())
    raise BadInput(f"No table is made for the mark {mark!r}. Marks start with: {', '.join(_MAKERS)}.")


def _table(results: Path, words: list[str]) -> str:
    made = format_brief if "--brief" in words else format_table
    return made(make_table(words[0], read_records(results, words[0])), "md")


def _parts(results: Path, words: list[str]) -> str:
    return format_parts(make_parts(words[0], _runs(results, *words)), "md")


def _forgetting(results: Path, words: list[str]) -> str:
    return format_forgetting(make_forgetting(words[0], _runs(results, *words)), "md")


def _runs(results: Path, task: str, *methods: str) -> Runs:
    """Records with their files: of all methods of the table, or of these; a trial is named `trials/NAME`."""
    folders = methods or ordered(task, {path.parent.name for path in (results / task).glob("*/*.json")})
    runs: Runs = {}
    for method in folders:
        folder = results / folder_of(task, method)
        runs[Path(method).name] = [(path, read_record(path)) for path in sorted(folder.glob("*.json"))]
        if not runs[Path(method).name]:
            raise BadInput(f"There are no records in {folder}.")
    return runs


def _ablation(results: Path, words: list[str]) -> str:
    ablation = find_ablation(words[0])
    header, rows = make_rows(ablation, list(ablation.runs().values()), read_records(results, words[0]))
    return format_lines(header, rows, "md")


def _sweep(results: Path, words: list[str]) -> str:
    """`remem sweep TASK --over SETTING VALUES... --methods METHODS... [--metric METRIC] --table`."""
    options: dict[str, list[str]] = {}
    for word in words[1:]:
        if word.startswith("--"):
            options[word] = []
        else:
            options[list(options)[-1]].append(word)
    sweep = make_sweep(words[0], options["--over"], options["--methods"])
    return format_sweep(tabulate(sweep, results, *options.get("--metric", [])), "md")


def _horizon(results: Path, words: list[str]) -> str:
    return format_sweep(horizon.tabulate(results, words[0], words[1:]), "md")


def _facts(results: Path, words: list[str]) -> str:
    tasks = [word for word in words if not word.startswith("-")]
    return "\n\n".join(format_description(read_description(results, task)) for task in tasks)


def _trials(results: Path, words: list[str]) -> str:
    return format_trials(results, words[0], parts=tuple(map(int, words[1:])) or None)


def _variants(results: Path, words: list[str]) -> str:
    return format_variants(results, words[0])


def _equal_steps(results: Path, words: list[str]) -> str:
    return format_steps(results, words[0], words[1:])


def _watched(results: Path, words: list[str]) -> str:
    name, step, *parts = words
    return format_watched(results, name, int(step), tuple(map(int, parts)))


def _tasks_after(results: Path, words: list[str]) -> str:
    task, step, *parts = words
    return format_parts_after(results, task, int(step), tuple(map(int, parts)))


def _bench(results: Path, words: list[str]) -> str:
    header = ["bench", "preset", "device", "batch", "way", "ms", "streams/s", "x eager", "MB"]
    rows = []
    for path in sorted((results / "bench").glob("*.json")):
        bench = json.loads(path.read_text())
        for row in bench["rows"]:
            facts = [bench["benchmark"], row.get("preset", bench["preset"]), bench["device"], bench["batch_size"]]
            facts += [row[name] for name in _FIGURES]
            rows.append(["–" if value is None else str(value) for value in facts])
    return format_lines(header, rows, "md", words=3)


# what was asked for: what is measured, its record, the figure, and its bound
GOALS = (
    ("training step of `synthetic/rm`, H200", "h200-synthetic-rm", "ms_per_step", "at most", 6.0),
    ("training step of `synthetic/rm`, H200", "h200-synthetic-rm", "times_eager", "at least", 8.0),
    ("training step of `babi/rm`, H200", "h200-babi-rm", "ms_per_step", "at most", 5.0),
    ("write scan, two CPU cores", "cpu-scan-synthetic-rm", "times_eager", "at least", 1.5),
    ("training step of `synthetic/rm`, two CPU cores", "cpu-train-synthetic-rm", "times_eager", "at least", 1.5),
)


def _goals(results: Path, words: list[str]) -> str:
    """Each goal beside the fastest way of its record."""
    rows = []
    for label, name, figure, relation, bound in GOALS:
        bench = json.loads((results / "bench" / f"{name}.json").read_text())
        best = min((row for row in bench["rows"] if row["way"] != "floor"), key=lambda row: row["ms_per_step"])
        unit = "ms" if figure == "ms_per_step" else "times plain PyTorch"
        reached = best[figure] <= bound if relation == "at most" else best[figure] >= bound
        command = f"remem bench {bench['benchmark']} {bench['preset']} --batch-size {bench['batch_size']}"
        told = bench.get("command") or f"{command} --precision {bench['precision']}"
        commit = bench["code"]["commit"][:7] + (" (see below)" if "note" in bench else "")
        rows.append([label, f"{relation} {bound:g} {unit}", f"{best[figure]:.2f}", "yes" if reached else "**no**",
                     commit, f"`{told}`"])  # fmt: skip
    return format_lines(["what", "goal", "measured", "reached", "commit", "command"], rows, "md", words=2)


def _checks(results: Path, words: list[str]) -> str:
    """Endless streams of `remem check`: how many random segments each memory took, and its largest number."""
    found = [json.loads(path.read_text()) for path in sorted((results / "checks").glob("*.json"))]
    rows = []
    for check in sorted(found, key=lambda check: (check["precision"] == "bf16", check["memory"])):
        endless = next(passed for passed in check["passed"] if passed["check"].startswith("check_endless"))
        slots = check.get("num_slots") or leaves(PRESETS[check["memory"]])["model.machine.num_slots"]
        rows.append([check["memory"], check["precision"], str(check["item_dim"]), str(slots),
                     f"{endless.get('segments', check['segments']):,}", f"{endless['largest']:g}",
                     check["code"]["commit"][:7]])  # fmt: skip
    header = ["memory", "arithmetic", "width", "slots", "random segments", "largest number in the state", "commit"]
    return format_lines(header, rows, "md", words=2)


def _best_of_each_kind(results: Path, words: list[str]) -> str:
    """For each task `rm` and the best of its kin beside the best rivals: with a memory, reading the stream again."""
    rows = []
    for task in words:
        metric = TABLE_METRICS[task][0]
        made = {row["method"]: row for row in make_table(task, read_records(results, task))["rows"]}
        means = {method: row["metrics"][metric]["mean"] for method, row in made.items() if row["metrics"][metric]["n"]}
        kinds: dict[bool | None, list[str]] = {None: [], True: [], False: []}  # ours; with a memory; without one
        for method in means:
            ours = method == "rm" or method.startswith("rm-")
            kinds[None if ours else bool(made[method]["state_floats"])].append(method)
        kinds[False].remove("blind")
        best = [max(kind, key=lambda method: means[method]) for kind in kinds.values()]
        own = (f"{means[method]:.2f}" if method in means else "–" for method in ("rm", "rm-no-rehearsal", "blind"))
        rows.append([task, metric, *own, *(f"{means[method]:.2f} ({method})" for method in best)])
    header = [
        "task", "metric", "rm", "rm-no-rehearsal", "blind", "best of ours", "best other memory", "best that reads again"
    ]  # fmt: skip
    return format_lines(header, rows, "md", words=2)


def _models(results: Path, words: list[str]) -> str:
    header = [
        "model",
        "row of the table",
        "seed",
        "test (%)",
        "steps",
        "parameters",
        "to answer",
        "state",
        "file",
        "commit",
    ]
    rows = []
    for path in sorted((results.parent / "models").glob("*/record.json")):
        record = read_record(path)
        test, model = record["metrics"]["test"], record["model"]
        told = [f"{name} {test[name]:.2f}" for name in ("error", "early", "later") if name in test]
        size = path.with_name("model.safetensors").stat().st_size / 1e6
        rows.append([
            f"`{path.parent.name}`", f"{record['task']}/{record['method']}", str(record["seed"]), ", ".join(told),
            f"{record['cost']['steps']:,} of {record['config']['train']['steps']:,}", f"{model['params']:,}",
            f"{model['params_to_answer']:,}", f"{4 * model['state_floats']:,} bytes", f"{size:.1f} MB",
            record["code"]["commit"][:7],
        ])  # fmt: skip
    return format_lines(header, rows, "md", words=2)


_MAKERS: dict[str, Callable[[Path, list[str]], str]] = {
    "remem table": _table,
    "remem ablate": _ablation,
    "remem sweep": _sweep,
    "remem plot horizon": _horizon,
    "remem data describe": _facts,
    "error by task": _parts,
    "forgetting": _forgetting,
    "trials": _trials,
    "variants": _variants,
    "best of each kind": _best_of_each_kind,
    "equal steps": _equal_steps,
    "tasks after": _tasks_after,
    "watched": _watched,
    "with and without rehearsal": lambda results, words: format_rehearsed(results, *words),
    "bench": _bench,
    "checks": _checks,
    "goals": _goals,
    "models": _models,
}


# drawings of docs/: what, task, and the runs as in a mark
FIGURES = (
    ("forgetting", "synthetic", ("rm-no-rehearsal", "rm", "rm-paper", "rm-random-sampler")),
    ("forgetting", "babi", ("rm-staged-answers", "rm-staged-continued", "rm", "rm-plain")),
    ("curves", "babi", ("rm-staged-continued", "rm-staged", "rm-led", "rm")),
    ("curves", "synthetic", ("multi-hop-reason", "rm-no-rehearsal", "rm", "rm-paper", "rm-random-sampler",
                             "trials/rm-no-warmup", "trials/rm-no-rehearsal-no-warmup")),
)  # fmt: skip
# and of sweeps: task, setting, methods
SWEEPS = (("synthetic-small", "K", ("rm", "stm", "ct")),)
HORIZONS = ("synthetic", "babi")  # and of how long memories last


def draw(results: Path, folder: Path) -> None:
    """Write the drawings of docs/; they need matplotlib."""
    from remem.experiments import plots

    for kind, task, methods in FIGURES:
        runs = _runs(results, task, *methods)
        drawn = (
            plots.draw_curves(task, runs) if kind == "curves" else plots.draw_forgetting(make_forgetting(task, runs))
        )
        plots.save(drawn, folder / f"{kind}-{task}.svg")
    for task, setting, swept in SWEEPS:
        table = tabulate(make_sweep(task, [setting], swept), results)
        plots.save(plots.draw_sweep(table), folder / f"sweep-{setting.lower()}-{task}.svg")
    for task in HORIZONS:
        plots.save(plots.draw_sweep(horizon.tabulate(results, task)), folder / f"horizon-{task}.svg")


def main() -> None:
    """Write the tables and drawings of README.md and docs/ anew."""
    draw(Path("results"), Path("docs/figures"))
    for page in [Path("README.md"), Path("models/README.md"), *sorted(Path("docs").glob("*.md"))]:
        before = page.read_text()
        after = refresh(before, Path("results"))
        if after != before:
            page.write_text(after)
            print(f"{page}: tables made anew")


if __name__ == "__main__":
    main()
