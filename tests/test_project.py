"""Promises about the project itself: no pickle, a README and examples that run, results that can be believed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from remem.bundle import load_bundle
from remem.cli.main import main
from remem.errors import BadInput
from remem.experiments import pages
from remem.experiments.ablations import ABLATIONS
from remem.experiments.paper import PAPER
from remem.experiments.presets import PRESETS
from remem.experiments.records import read_record, read_records, record_path
from remem.experiments.sweeps import methods_of
from remem.experiments.variation import differences
from remem.settings.codec import to_json
from remem.streaming.memory import StreamMemory

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")])
BENCHES = sorted((ROOT / "results" / "bench").glob("*.json"))
CHECKED = sorted((ROOT / "results" / "checks").glob("*.json"))
# from before benchmarks wrote their date and number of steps
UNDATED = {
    "cpu-methods", "h200-babi-rm", "h200-methods", "h200-scan-synthetic-rm", "h200-synthetic-rm",
}  # fmt: skip
PAGES = [ROOT / "README.md", ROOT / "models" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
APART = {"bench", "checks", "data", "horizon", "watched"}
RECORDS = [path for path in sorted((ROOT / "results").rglob("*.json")) if not APART & {*path.parts}]
WATCHED = sorted((ROOT / "results" / "watched").glob("*.json"))
HORIZONS = sorted((ROOT / "results" / "horizon").rglob("*.json"))
# what stands in a table: not the trials, and not the demo, which is no preset
ROWS = [path for path in RECORDS if path.parts[-3] in {*PAPER, *ABLATIONS} and path.parts[-4] == "results"]
TRIALS = sorted({path.parent for path in RECORDS if path.parts[-4] == "trials"})
SWEPT = [path for path in RECORDS if path.parts[-4] == "sweeps"]
FORBIDDEN = re.compile(
    r"\bpickle\b|torch\.(load|save)\(|\bmarshal\b|\bdill\b|\bjoblib\b|\bshelve\b|weights_only|\beval\(['\"]|\bexec\("
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_ever_pickled(path: Path) -> None:
    assert not FORBIDDEN.search(path.read_text())


def test_the_search_for_pickle_would_find_it() -> None:
    for line in ("import pickle", "torch.load(path)", "torch.save(x, p)", "exec(code)"):
        assert FORBIDDEN.search(line)


def code_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def _run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=250, env=environment
    )


@pytest.mark.parametrize("number", range(len(code_blocks((ROOT / "README.md").read_text()))))
def test_the_readmes_examples_run(number: int, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "models", tmp_path / "models")
    done = _run(code_blocks((ROOT / "README.md").read_text())[number], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_readmes_console_shows_what_it_prints() -> None:
    (session,) = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    typed = [line[2:] for line in session.splitlines() if line.startswith(("$ ", "> "))]
    printed = [line for line in session.splitlines() if not line.startswith(("$ ", "> "))]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where `remem` is installed
    done = subprocess.run(
        ["bash", "-c", "\n".join(typed)], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.stdout.splitlines() == printed, done.stderr


def test_the_readme_has_an_example() -> None:
    assert code_blocks((ROOT / "README.md").read_text())


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_are_short_and_run(path: Path, tmp_path: Path) -> None:
    code = path.read_text()
    assert len(code.splitlines()) <= 60
    done = _run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_method_in_the_guide_is_the_example() -> None:
    guide = between_marks((ROOT / "docs" / "add-a-method.md").read_text(), "examples/own_memory.py")
    code = guide.removeprefix("```python\n").removesuffix("\n```")
    assert code.strip() in (ROOT / "examples" / "own_memory.py").read_text()


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_record_says_what_made_it(path: Path) -> None:
    record = read_record(path)
    assert record["metrics"]["test"]
    assert record["data"]["fingerprint"]
    assert record["cost"]["wall_seconds"] > 0
    assert not record["code"].get("dirty"), "made from a checkout with changes that no commit has"


@pytest.mark.parametrize("path", BENCHES, ids=lambda p: p.stem)
def test_every_benchmark_says_what_made_it(path: Path) -> None:
    bench = json.loads(path.read_text())
    assert bench["code"]["commit"]
    assert bench["versions"].keys() >= {"python", "torch"}
    assert bench["device"]
    assert bench["precision"] in ("float32", "bf16")
    assert bench["batch_size"] > 0
    assert bench["rows"]
    assert all(row["way"] and row["ms_per_step"] > 0 for row in bench["rows"])
    if path.stem not in UNDATED:
        assert datetime.fromisoformat(bench["made"])
        assert bench["steps"] > 0


@pytest.mark.parametrize("path", CHECKED, ids=lambda p: p.stem)
def test_every_check_says_what_made_it(path: Path) -> None:
    check = json.loads(path.read_text())
    assert check["memory"] in PRESETS
    assert check["code"]["dirty"] is False
    assert datetime.fromisoformat(check["made"])
    assert len(check["passed"]) >= 8
    assert check["segments"] >= 1000


@pytest.mark.parametrize("path", WATCHED, ids=lambda p: p.stem)
def test_every_run_that_was_only_watched_says_what_made_it(path: Path) -> None:
    watched = json.loads(path.read_text())
    assert watched["preset"] in PRESETS
    assert watched["code"]["commit"]
    assert watched["versions"].keys() >= {"python", "torch"}
    assert watched["data"]["fingerprint"]
    assert datetime.fromisoformat(watched["made"])
    assert all(run["options"] and run["seconds"] > 0 for run in watched["runs"])
    assert all(run["history"][-1]["step"] == run["steps"] for run in watched["runs"])


@pytest.mark.parametrize("path", HORIZONS, ids=lambda p: f"{p.parts[-3]}-{p.parent.name}-{p.stem}")
def test_every_horizon_says_what_made_it(path: Path) -> None:
    record = json.loads(path.read_text())
    assert record["code"]["commit"]
    assert record["code"]["dirty"] is False
    assert datetime.fromisoformat(record["made"])
    assert set(record["data"]["fingerprint"]) == {str(beyond) for beyond, _, _ in record["beyond"]}
    assert all(0 <= right <= total >= 100 for _, right, total in record["beyond"])
    assert record_path(ROOT / "results" / "horizon", record) == path


@pytest.mark.parametrize("name", ["babi", "demo", "synthetic"])
def test_it_is_known_how_long_each_shipped_model_remembers(name: str) -> None:
    shipped = read_record(ROOT / "models" / name / "record.json")["model"]["fingerprint"]
    assert shipped in {json.loads(path.read_text())["model"]["fingerprint"] for path in HORIZONS}


def test_every_memory_was_put_to_an_endless_stream_in_both_precisions() -> None:
    checked = {(check["memory"], check["precision"]) for check in (json.loads(p.read_text()) for p in CHECKED)}
    names = ("rm", "dnc", "dnc-msd", "nutm", "dmsdnc", "stm", "stm-matched", "ct", "hpmn", "mimn")
    memories = ["babi/rm-recent", "lastfm/rm-delta", *(f"synthetic/{name}" for name in names)]
    assert checked == {(memory, precision) for memory in memories for precision in ("float32", "bf16")}


def test_a_benchmark_written_now_passes_for_one(tmp_path: Path) -> None:
    out = tmp_path / "write.json"
    assert main(["bench", "write", "--batch-size", "2", "--steps", "1", "--device", "cpu", "--out", str(out)]) == 0
    test_every_benchmark_says_what_made_it(out)


def between_marks(text: str, mark: str) -> str:
    start = text.index(f"<!-- {mark} -->") + len(f"<!-- {mark} -->")
    return text[start : text.index("<!-- end -->", start)].strip()


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_tables_of_a_page_are_made_from_the_records(path: Path) -> None:
    text = path.read_text()
    assert pages.refresh(text, ROOT / "results") == text, "`make tables` makes them anew"


def test_readme_and_docs_have_the_tables_they_should() -> None:
    found = {str(path.relative_to(ROOT)).removeprefix("docs/"): pages.marks(path.read_text()) for path in PAGES}
    long_tasks = ("narrativeqa", "activitynetqa", "lastfm", "assistments")
    summary = f"best of each kind {' '.join(long_tasks)}"
    assert found["README.md"] == ["remem table synthetic --brief", "remem table babi --brief", summary]
    assert {"remem table synthetic", "remem table babi"} <= {*found["synthetic.md"], *found["babi.md"]}
    assert {f"remem table {task}" for task in long_tasks} <= {mark for marks in found.values() for mark in marks}
    assert "trials synthetic" in found["learning.md"]
    assert {"trials babi", "trials babi 16"} <= set(found["babi-trials.md"])
    assert all(found[page] for page in ("babi.md", "baselines.md", "performance.md", "models/README.md"))


def test_a_table_that_the_records_do_not_give_is_written_anew_and_an_unknown_one_refused() -> None:
    page = "before\n<!-- remem table babi -->\n| typed by hand |\n<!-- end -->\nafter\n"
    made = pages.refresh(page, ROOT / "results")
    assert "typed by hand" not in made
    assert "| rm-plain | 5.04 |" in made
    assert made.startswith("before\n")
    assert made.endswith("<!-- end -->\nafter\n")
    with pytest.raises(BadInput, match="No table is made"):
        pages.refresh(page.replace("remem table babi", "remem cable babi"), ROOT / "results")


def test_the_best_of_each_kind_is_the_best_row_of_its_table() -> None:
    row = pages.render("best of each kind lastfm", ROOT / "results").splitlines()[-1]
    table = pages.render("remem table lastfm", ROOT / "results").splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in table]
    means = {cell[0]: float(cell[1].split(" ")[0]) for cell in cells}
    keeps = {cell[0] for cell in cells if cell[14] != "–"}
    ours = max((mean, method) for method, mean in means.items() if method.startswith("rm"))
    others = {method: mean for method, mean in means.items() if not method.startswith("rm") and method != "blind"}
    memory = max((mean, method) for method, mean in others.items() if method in keeps)
    reader = max((mean, method) for method, mean in others.items() if method not in keeps)
    told = [f"{means[method]:.2f}" for method in ("rm", "rm-no-rehearsal", "blind")]
    told += [f"{mean:.2f} ({method})" for mean, method in (ours, memory, reader)]
    assert row == f"| lastfm | every_auc | {' | '.join(told)} |"
    assert keeps >= {"rm", "hpmn"}


@pytest.mark.parametrize(
    "mark",
    [
        "remem table synthetic",
        "remem table babi",
        "remem ablate synthetic-small --table",
        "remem sweep synthetic-small --over K 2 4 8 16 --methods rm stm ct --metric early --table",
        "remem data describe lastfm assistments --table",
    ],
)
def test_a_mark_that_is_a_command_prints_its_table(mark: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*mark.split()[1:], "--results", str(ROOT / "results")]) == 0
    assert capsys.readouterr().out.strip() == pages.render(mark, ROOT / "results")


@pytest.mark.parametrize("path", ROWS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_row_of_a_table_is_the_preset_it_is_named_after(path: Path) -> None:
    """A run with other settings belongs into results/trials, under a name of its own."""
    record = read_record(path)
    task, method = record["task"], record["method"]
    presets = (
        ABLATIONS[task].runs() if task in ABLATIONS else {name: PRESETS.get(f"{task}/{name}") for name in [method]}
    )
    preset = presets[method]
    assert preset is not None, f"{task}/{method} is no preset"
    assert differences(preset, record["config"]) == {}


@pytest.mark.parametrize("path", SWEPT, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_point_of_a_sweep_differs_from_its_method_in_one_setting_which_its_name_tells(path: Path) -> None:
    record = read_record(path)
    preset = methods_of(record["task"])[record["method"].partition("[")[0]]
    told = [f"{name}={value}" for name, value in differences(preset, record["config"]).items()]
    assert len(told) <= 1
    assert record["method"] == preset.method + "".join(f"[{change}]" for change in told)


def test_a_row_with_other_settings_than_its_preset_would_be_found() -> None:
    preset = PRESETS["babi/rm-no-rehearsal"]
    altered = to_json(replace(preset, seed=3, train=replace(preset.train, learning_rate=2e-3, max_seconds=60.0)))
    assert differences(preset, altered) == {"train.learning_rate": 2e-3}


@pytest.mark.parametrize("path", TRIALS, ids=lambda p: p.name)
def test_a_trial_is_named_after_its_folder_and_shown_on_a_page(path: Path) -> None:
    names = {read_record(record)["method"] for record in path.glob("*.json")}
    assert names == {path.name}
    shown = f"`trials/{path.parent.name}/{path.name}`"
    assert any(shown in page.read_text() for page in PAGES)


def test_each_note_on_the_paper_names_a_test_that_exists() -> None:
    rows = between_lines((ROOT / "docs" / "paper-notes.md").read_text(), "| --- | --- | --- | --- |", "")
    assert len(rows) > 30
    for row in rows:
        held = row.rstrip("| ").rsplit(" | ", 1)[1]
        if held.startswith("no test"):
            continue
        for each in held.split(", "):
            path, name = each.strip("`").split("::")
            assert f"\ndef {name}(" in (ROOT / "tests" / path).read_text(), f"{each}: {row[:60]}"


def between_lines(text: str, first: str, last: str) -> list[str]:
    lines = text.splitlines()
    start = lines.index(first) + 1
    return lines[start : lines.index(last, start)]


@pytest.mark.parametrize("name", ["demo", "synthetic", "babi"])
def test_a_shipped_model_is_small_whole_and_has_its_record(name: str) -> None:
    folder = ROOT / "models" / name
    assert (folder / "model.safetensors").stat().st_size <= 8 * 2**20
    bundle, record = load_bundle(folder), json.loads((folder / "record.json").read_text())
    assert bundle.fingerprint == record["model"]["fingerprint"]
    if name != "demo":
        published = [r for r in read_records(ROOT / "results", name) if r["model"]["fingerprint"] == bundle.fingerprint]
        assert published == [record]


def test_the_shipped_babi_model_answers_a_story_it_has_never_seen() -> None:
    memory = StreamMemory.open(ROOT / "models" / "babi")
    memory.write_many(["Mary moved to the bathroom.", "John went to the hallway.", "Mary journeyed to the garden."])
    assert memory.query("Where is Mary?").answer == "garden"
    assert memory.query("Where is John?").answer == "hallway"
