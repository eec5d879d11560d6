"""The command line: what it prints, how quickly it starts, and how it refuses."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import remem
from remem.cli.main import COMMANDS, main
from remem.data.babi_twin import write_twin
from remem.data.synthetic import export_jsonl
from remem.experiments.paper import PAPER
from remem.experiments.presets import PRESETS
from remem.settings.tasks import SyntheticTask

# a synthetic run of a few steps, as flags
TINY = (  # noqa: SIM905
    "--task.num-groups 2 --task.num-facts 12 --task.stream-len 12 --task.num-queries 2 --task.num-answers 3 "
    "--task.evidence-len 2 --task.samples-per-chain 10 --task.eval-samples-per-chain 5 --task.segment-len 4 "
    "--model.item-dim 16 --model.model-dim 16 --model.machine.num-slots 3 --model.machine.encoder-layers 1 "
    "--model.rehearsal.decoder-layers 1 --train.steps 4 --train.batch-size 8 --train.eval-every 2 "
    "--sampler-train.steps 2 --sampler-train.batch-size 8 --device cpu"
).split()

MODELS = Path(__file__).resolve().parents[2] / "models"


def run(*arguments: str | Path) -> int:
    return main([str(a) for a in arguments])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REMEM_DATA", raising=False)
    return tmp_path


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("remem 0.")


@pytest.mark.parametrize("command", [*([c, "--help"] for c in COMMANDS), ["train", "babi/rm", "--help"]])
def test_help_starts_within_a_second(command: list[str]) -> None:
    """In processor time, best of three: the machine may be busy, the command may not."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-m", "remem", *command], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert done.returncode == 0
        assert "usage" in done.stdout
        if times[-1] < 1:
            break
    assert min(times) < 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval", "nowhere"], "does not exist"),
        (["eval", MODELS / "babi"], "holds no prepared bAbI data"),
        (["train", "babi/rm"], "holds no prepared bAbI data"),
        (["train", "lastfm/rm"], "holds no prepared clicks data"),
        (["ask", "nowhere", "Where is Mary?"], "does not exist"),
        (["ask", MODELS / "babi", "Where is the unicorn?"], "'unicorn'"),
        (["ask", MODELS / "babi", "Where is Mary?"], "'zebra'"),
    ],
)
def test_what_can_be_refused_without_torch_is_refused_before_it_is_loaded(
    arguments: list[str], said: str, here: Path
) -> None:
    code = (
        "import sys; from remem.cli.main import main\n"
        "code = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], input="Mary saw the zebra.", capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


def test_the_list_of_presets_tells_each_task_apart_from_its_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 0
    said = capsys.readouterr().out
    for task in {name.partition("/")[0] for name in PRESETS}:
        assert re.search(rf"^  {task} +rm-", said, flags=re.MULTILINE), task


def test_a_presets_help_shows_its_fields_with_the_papers_symbols(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("train", "synthetic/rm", "--help")
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for word in ("R_f", "d_model", "lambda_1", "--model.machine.num-slots", "default: 400"):
        assert word in text


def test_train_eval_and_table_work_together(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "synthetic/rm", *TINY, "--seed", "0", "1", "--method", "rm") == 0
    folder = next(path for path in (here / "runs").iterdir() if path.name.endswith("-s1"))
    capsys.readouterr()
    assert run("eval", folder, "--format", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    record = json.loads((folder / "record.json").read_text())
    assert shown["metrics"]["early"] == pytest.approx(record["metrics"]["test"]["early"], abs=1e-3)
    assert sum(part["total"] for part in shown["parts"].values()) == 30
    assert run("eval", folder) == 0
    assert "early" in capsys.readouterr().out
    assert run("table", "synthetic", "--format", "json") == 0
    table = json.loads(capsys.readouterr().out)
    row = next(r for r in table["rows"] if r["method"].startswith("rm["))
    assert row["metrics"]["early"]["n"] == 2
    assert row["state_floats"] == 48
    paper = next(r for r in table["rows"] if r["method"] == "dnc")
    quoted = {"mean": 20.56, "std": None, "best": None, "valid": None}
    nothing = {"mean": None, "std": None, "best": None, "n": 0, "valid": None}
    assert paper["metrics"]["early"] == nothing | {"paper": quoted}


def test_eval_takes_any_streams_of_the_tasks_format(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "synthetic/rm-random-sampler", *TINY, "--out", "model") == 0
    task = SyntheticTask(
        num_groups=2, num_facts=12, stream_len=12, num_queries=2, num_answers=3, evidence_len=2,
        samples_per_chain=10, eval_samples_per_chain=4, segment_len=4, data_seed=5,
    )  # fmt: skip
    export_jsonl(task, "test", here / "mine.jsonl")
    capsys.readouterr()
    assert run("eval", "model", "--data", "mine.jsonl", "--format", "json") == 0
    assert sum(p["total"] for p in json.loads(capsys.readouterr().out)["parts"].values()) == 24
    (here / "bad.jsonl").write_text('{"stream": [1, 2]}\n')
    assert run("eval", "model", "--data", "bad.jsonl") == 2
    assert "bad.jsonl, line 1" in capsys.readouterr().err


def test_babi_from_import_to_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_twin(here / "raw", stories=12)
    assert run("data", "import", "raw") == 0
    assert "qa6_valid" in capsys.readouterr().out
    assert run("data", "show") == 0
    assert "from en-valid-10k/qa1_valid.txt" in capsys.readouterr().out
    flags = [*TINY[TINY.index("--model.item-dim") :], "--task.tasks", "1", "6"]
    assert run("train", "babi/rm", *flags, "--out", "model") == 0
    capsys.readouterr()
    only_one = here / "own"
    only_one.mkdir()
    (only_one / "qa6_mine_test.txt").write_text("1 Mary went to the garden.\n2 Is Mary in the office?\tno\t1\n")
    assert run("eval", "model", "--data", "own", "--format", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown["parts"]) == ["qa6"]
    assert shown["metrics"]["error"] == shown["metrics"]["qa6"]
    assert run("table", "babi", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["method"] for row in rows} >= {"dnc-native", "stm-native", "ct", "rm"}
    assert run("table", "babi") == 0
    assert "| stm-native | – |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["teach"], "no command 'teach'"),
        (["train", "synthetic/none"], "`remem train --help` lists them all"),
        (["train", "babi/rm"], "remem data import"),
        (["train", "--resume"], "needs the folder"),
        (["train", "synthetic/rm", "--seed", "1", "0", "1"], "--seed 1 0 1: give each seed once"),
        (["train", "synthetic/rm", "--seed"], "at least one"),
        (["train", "--resume", "nowhere"], "holds no run"),
        (["train", "synthetic/rm", "--task.num-facts", "401"], "multiple of num_groups"),
        (["train", "synthetic/rm", *TINY, "--model.machine.num-heads", "5"], "5 heads"),
        (["train", "synthetic/rm", *TINY, "--train.eval-every", "0"], "--train.eval-every is 0; expected at least 1"),
        (["eval", "nowhere"], "does not exist"),
        (["eval", "nowhere", "--limit", "0"], "at least one stream"),
        (["eval", "nowhere", "--batch-size", "0"], "at least one stream at a time"),
        (["bench", "write", "--batch-size", "0"], "--batch-size is 0"),
        (["bench", "write", "--steps", "-1"], "--steps is -1"),
        (["check", "synthetic/rm", "--item-dim", "0"], "a width of at least 1"),
        (["check", "synthetic/rm", "--segment-len", "2"], "--segment-len 5 or more"),
        (["check", ":make"], "can't be imported"),
        (["check", "pathlib:Path.home"], "can't be imported"),
        (["check", "json:loads"], "can't be called without arguments"),
        (["table", "chess"], "no task 'chess'"),
        (["table", "babi"], "no folder results"),
        (["table", "babi", "--brief", "--format", "json"], "give one or the other"),
        (["data", "import", "nowhere"], "does not exist"),
        (["data", "eat"], "no `remem data eat`"),
        (["data", "show"], "no prepared data"),
        (["bench", "sleep"], "no benchmark"),
        (["bench", "train", "chess/rm"], "no preset"),
        (["train", "synthetic/rn"], "Nearest: synthetic/rm"),
        (["train", "synthetic/directly-reason", "--task.name", "babi"], "name stands in records and tables"),
        (["train", "synthetic/directly-reason", "--method", "rm"], "the name of another preset"),
        (["bench", "scan", "synthetic/stm", "--device", "cpu"], "no write scan"),
        (["bench", "write", "synthetic/multi-hop-reason", "--device", "cpu"], "no memory to write to"),
    ],
)
def test_bad_input_gets_a_sentence_and_exit_code_2(
    arguments: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize("arguments", [["--help"], ["table", "--help"], ["table", "synthetic", "--brief"]])
def test_a_reader_that_has_seen_enough_is_no_failure(arguments: list[str]) -> None:
    """Also where all of it fits into a buffer, which is written when the command is over."""
    closed, end = os.pipe()
    os.close(closed)
    with os.fdopen(end, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "remem", *arguments],
            cwd=MODELS.parent, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_output_that_finds_no_room_is_told_in_a_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "remem", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (
        2,
        "remem: The output can't be read or written (No space left on device).\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "export", "file/out.jsonl"],
        ["demo", "--quick", "--out", "file"],
        ["token", "add", "file/tokens.json"],
        ["train", "synthetic/rm", "--out", "file"],
        ["train", "synthetic/rm", "--results", "file"],
        ["train", "synthetic/rm", "--out", "file/run"],
        ["ablate", "synthetic-small", "--runs", "file/runs"],
        ["sweep", "synthetic-small", "--over", "K", "2", "--results", "file"],
        ["horizon", MODELS / "synthetic", "--results", "file"],
        ["check", "synthetic/rm", "--out", "file/check.json"],
        ["bench", "write", "--out", "file/bench.json"],
        ["bench", "service", MODELS / "synthetic", "--out", "file/bench.json"],
    ],
)
def test_a_place_that_cannot_be_written_to_is_told_before_the_work(
    arguments: list[str | Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "file").write_text("not a folder")
    assert run(*arguments) == 2
    assert "file" in capsys.readouterr().err
    assert (here / "file").read_text() == "not a folder"


def test_an_unknown_flag_exits_with_2(here: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("train", "synthetic/rm", "--no-such-flag")
    assert stopped.value.code == 2


def test_a_finished_run_is_never_trained_over(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "synthetic/rm-no-rehearsal", *TINY, "--out", "model"]
    assert run(*arguments) == 0
    before = (here / "model" / "model.safetensors").read_bytes()
    assert run(*arguments) == 2
    assert "--resume" in capsys.readouterr().err
    assert (here / "model" / "model.safetensors").read_bytes() == before


def test_a_configuration_that_is_no_text_is_called_damaged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "run").mkdir()
    (here / "run" / "config.json").write_bytes(b"\xff\xfe")
    assert main(["train", "--resume", "run"]) == 2
    assert "config.json is damaged" in capsys.readouterr().err


def test_resume_and_from_repeat_the_same_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "synthetic/rm-random-sampler", *TINY, "--out", "model") == 0
    assert run("train", "--resume", "model", "--device", "cpu") == 0
    for ignored in (["--resume", "model", "--train.steps", "9"], ["--from", "model", "--seed", "0", "1"]):
        assert run("train", *ignored) == 2  # rather than done without what was asked for
        assert " ".join(ignored[2:]) in capsys.readouterr().err
    assert run("train", "--from", "model", "--device", "cpu") == 0
    first, again = (json.loads((here / f / "record.json").read_text()) for f in ("model", "model-again"))
    assert first["model"]["fingerprint"] == again["model"]["fingerprint"]
    with contextlib.chdir("model"):
        assert run("train", "--from", ".", "--device", "cpu") == 2  # model-again is there
    (here / "model" / "config.json").write_text("{")
    assert run("train", "--resume", "model") == 2


def test_demo_trains_two_models_and_reads_a_stream(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "demo").mkdir()
    (here / "demo" / "memories.db").write_text("a store of the user's own")
    assert run("demo", "--quick", "--out", "demo") == 0
    assert (here / "demo" / "memories.db").read_text() == "a store of the user's own"
    text = capsys.readouterr().out
    assert "without rehearsal" in text
    sizes = {line.split("memory ")[1] for line in text.splitlines() if "memory " in line and "bytes" in line}
    assert len(sizes) == 1
    assert (here / "demo" / "rm" / "model.safetensors").exists()
    killed = re.search(r"killed after (\d+) of (\d+) events were acknowledged; opened again, (\d+) are there", text)
    assert killed
    acknowledged, length, found = map(int, killed.groups())
    assert 0 < acknowledged <= found <= length
    assert f"all sent again: {length} events, each once" in " ".join(text.split())


@pytest.mark.parametrize(
    ("kind", "ways"),
    [
        ("write", ["segment by segment", "encoded at once"]),
        ("scan", ["eager loop", "fast scan", "floor"]),
        ("train", ["eager", "fast scan", "floor"]),
    ],
)
def test_benchmarks_print_and_record_before_and_after(
    kind: str, ways: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", "figures/bench.json")
    assert run("bench", kind, "--batch-size", "2", "--steps", "1", "--device", "cpu", *out) == 0
    printed = capsys.readouterr().out.splitlines()[1:]
    record = json.loads((here / "figures" / "bench.json").read_text())
    assert [row["way"] for row in record["rows"]] == ways
    assert record["rows"][0]["times_eager"] == 1
    assert record["code"]["commit"]
    assert all(
        row["ms_least"] <= row["ms_per_step"] <= row["ms_most"] for row in record["rows"] if row["way"] != "floor"
    )
    assert record["rows"][0]["peak_memory_mb"] > 0
    for row, line in zip(record["rows"], printed, strict=False):
        assert line.startswith(row["way"])
        assert f"{row['ms_per_step']:.2f} ms" in line
    if kind == "train":  # arithmetic and bytes alone take less time than the step itself
        assert record["flops"] > 0
        assert record["rows"][-1]["ms_per_step"] < record["rows"][0]["ms_per_step"]


def test_methods_are_timed_next_to_each_other(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--batch-size", "2", "--steps", "1", "--device", "cpu", "--out", "bench.json")
    assert run("bench", "train", "--method", "directly-reason", "multi-hop-reason", *sizes) == 0
    record = json.loads((here / "bench.json").read_text())
    assert [row["way"] for row in record["rows"]] == [
        "directly-reason, eager", "directly-reason, compiled", "multi-hop-reason, eager", "multi-hop-reason, compiled"
    ]  # fmt: skip
    fast = [record["rows"][i]["ms_per_step"] for i in (1, 3)]
    assert f"{fast[1] / fast[0]:8.2f} times the step of directly-reason" in capsys.readouterr().out


def test_data_export_writes_streams(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--task.eval-samples-per-chain", "1", "--task.num-answers", "2"]
    assert run("data", "export", "s.jsonl", *few) == 0
    assert json.loads(capsys.readouterr().out)["streams"] == 80
    assert len((here / "s.jsonl").read_text().splitlines()) == 80
    assert run("data", "export", "nowhere/s.jsonl", *few) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_public_names_are_there_and_no_others() -> None:
    for name in remem.__all__:
        assert getattr(remem, name) is not None
    assert set(dir(remem)) == set(remem.__all__)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        remem.nothing_like_it  # noqa: B018
    assert {"synthetic/rm", "babi/dnc", "lastfm/hpmn", "xlong/dien"} <= set(PRESETS)
    # every table has the rows of the whole family
    assert {f"{task}/{method}" for task in PAPER for method in ("rm-paper", "rm", "rm-no-rehearsal", "ct")} <= set(
        PRESETS
    )


def test_an_evaluation_can_be_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    model = Path(__file__).parents[2] / "models" / "synthetic"
    assert run("eval", str(model), "--limit", "5", "--batch-size", "4", "--device", "cpu") == 0
    assert "questions on 8 streams" in capsys.readouterr().out
