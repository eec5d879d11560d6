"""`remem check`: the contract suite on a preset's memory, or on one of your own."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from remem.cli.outputs import require_writable
from remem.errors import BadInput, RememError

if TYPE_CHECKING:
    from remem.checks.memorizer import Endless
    from remem.checks.recall import Recall
    from remem.model.interface import Memorizer


@dataclass(frozen=True, kw_only=True)
class Options:
    """Run every check; the first that fails ends it with exit code 1."""

    memory: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET|MODULE:FUNCTION")]
    """A preset such as synthetic/dnc, or PACKAGE.MODULE:FUNCTION that returns a memory."""
    item_dim: int = 16
    """Width of the items. A preset is built at this width; a function of your own must return a memory for it."""
    segment_len: int = 5
    """Longest segment a preset's memory is built for; the checks take four items, recall takes five."""
    num_slots: int | None = None
    """Memory slots (K) of a preset's memory; by default its own."""
    segments: int = 5000
    """Random segments of the endless stream; one whose state still grows then goes on, up to ten times as long."""
    precision: Literal["float32", "bf16"] = "float32"
    """Arithmetic of the endless stream; bf16 is mixed precision, as in training."""
    compile: bool = False
    """Compile what a stream repeats before the endless one, which makes a long one up to ten times faster."""
    recall: bool = True
    """Also train the memory to recall which of four symbols came first among fifty items."""
    out: Path | None = None
    """Record to write: what was checked, with which code, and what came of it."""


def main(argv: list[str]) -> None:
    """Print a line for each check."""
    options = tyro.cli(Options, args=argv, prog="remem check")
    require_writable(options.out)
    items = 5 if options.recall else 4
    if options.item_dim < 1 or options.segment_len < items:
        raise BadInput(
            f"Items {options.item_dim} wide in segments of {options.segment_len} can't be checked; expected a width of "
            f"at least 1, and --segment-len {items} or more, as long as the segments that are written."
        )
    if options.num_slots is not None and options.num_slots < 1:
        raise BadInput(f"--num-slots is {options.num_slots}; expected at least 1.")
    if options.segments < 2:
        raise BadInput(f"--segments is {options.segments}; expected at least 2, of which a stream could grow.")
    import torch

    from remem.checks.memorizer import CHECKS, check_endless
    from remem.checks.recall import check_recall
    from remem.training.precision import autocast
    from remem.training.record import code_version

    def endless(memory: Memorizer, item_dim: int) -> Endless:
        if options.compile:
            memory.compile_parts("inductor")
        with autocast(torch.device("cpu"), options.precision):
            return check_endless(memory, item_dim, options.segments)

    code = code_version()  # now, not at the end: the checkout may have moved on by then
    torch.manual_seed(0)
    memory = _find(options)
    checks: list[tuple[str, Any]] = [(check.__name__, check) for check in CHECKS]
    checks.append((f"check_endless, {options.segments:,} segments", endless))
    if options.recall:
        checks.append(("check_recall", check_recall))
    passed: list[dict[str, Any]] = []
    for name, check in checks:
        started = time.perf_counter()
        if isinstance(memory, torch.nn.Module):
            memory.eval()
        try:
            with torch.set_grad_enabled(name == "check_recall"):
                result = check(memory, options.item_dim)
        except AssertionError as broken:
            raise RememError(f"{name}: {broken}") from None
        seconds = time.perf_counter() - started
        passed.append({"check": name, "seconds": round(seconds, 1), **_result(result)})
        print(f"{name:<40} ok {seconds:8.1f} s{_told(result)}", flush=True)
    if options.out:
        _write(options.out, options, code, passed)


def _write(path: Path, options: Options, code: dict[str, Any], passed: list[dict[str, Any]]) -> None:
    from dataclasses import asdict

    import torch

    from remem.experiments.bench import device_name
    from remem.training.record import now, versions

    settings = {name: value for name, value in asdict(options).items() if name not in ("out", "recall")}
    facts = {"made": now(), "code": code, "versions": versions(), "device": device_name(torch.device("cpu"))}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**settings, **facts, "passed": passed}, indent=1) + "\n")


def _result(result: Endless | Recall | None) -> dict[str, Any]:
    from remem.checks.memorizer import Endless

    if isinstance(result, Endless):
        along = [[written, _rounded(size)] for written, size in result.along]
        return {"segments": result.segments, "largest": _rounded(result.largest), "along": along}
    return {} if result is None else {"accuracy": round(result.accuracy, 4), "steps": result.steps}


def _rounded(size: float) -> float:
    return float(f"{size:.4g}")


def _told(result: Endless | Recall | None) -> str:
    from remem.checks.memorizer import Endless

    if isinstance(result, Endless):
        return f"   largest number {result.largest:.3g} in {result.segments:,} segments"
    return f"   {100 * result.accuracy:.1f} % after {result.steps} steps" if result is not None else ""


def _find(options: Options) -> Memorizer:
    if ":" in options.memory:
        return _import(options.memory)
    from dataclasses import replace

    from remem.build import build_memorizer
    from remem.data.codec import IdCodec
    from remem.experiments.presets import find_preset
    from remem.settings.model import with_machine

    model = replace(find_preset(options.memory).model, item_dim=options.item_dim, model_dim=options.item_dim)
    if options.num_slots is not None and hasattr(model.machine, "num_slots"):
        model = with_machine(model, num_slots=options.num_slots)
    codec = IdCodec(segment_len=options.segment_len, num_items=4, num_queries=1, num_answers=4)
    memory: Any = build_memorizer(model, codec)
    return memory


def _import(path: str) -> Memorizer:
    module, _, name = path.partition(":")
    sys.path.insert(0, "")  # as `python -m` does: your own files are found from where you are
    try:
        make = getattr(importlib.import_module(module), name)
    # an empty name is a ValueError, and one that begins with a dot a TypeError
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise BadInput(f"{path!r} can't be imported ({error}); give PACKAGE.MODULE:FUNCTION.") from None
    from remem.model.interface import Memorizer

    try:
        with contextlib.suppress(ValueError):  # what is built in tells no signature
            inspect.signature(make).bind()
    except TypeError as error:
        raise BadInput(
            f"{path} can't be called without arguments ({error}); give a function that needs none."
        ) from None
    memory = make()
    if not isinstance(memory, Memorizer):
        parts = [part for part in ("initial_state", "write", "write_stream", "memory", "compile_parts")
                 if not hasattr(memory, part)]  # fmt: skip
        raise BadInput(f"What {path} returns is no memory: it lacks {', '.join(parts)}.")
    return memory
