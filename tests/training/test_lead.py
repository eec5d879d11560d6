"""Parts of a task that come first: alone, in stages, for as long as they take, and anew where they find nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from remem.bundle import load_tensors
from remem.data.babi_store import import_babi
from remem.data.babi_twin import write_twin
from remem.data.batch import Batch
from remem.errors import BadInput
from remem.settings.model import ModelSettings, without_rehearsal
from remem.settings.run import Run
from remem.settings.tasks import BabiTask
from remem.training.run import Trainer

CPU = torch.device("cpu")


def _watched(trainer: Trainer) -> list[Batch]:
    """Every batch that the run will be trained on, as it comes."""
    split, seen = trainer.split("train"), []
    taken = split.batch
    object.__setattr__(split, "batch", lambda bucket, rows: seen.append(taken(bucket, rows)) or seen[-1])
    return seen


def test_leading_parts_are_trained_on_alone_at_first_and_must_exist(
    twin: Path, tiny_run: Run, shrink: Callable[[ModelSettings], ModelSettings], tmp_path: Path
) -> None:
    train = replace(tiny_run.train, steps=6, batch_size=4, eval_every=3, focus=10.0, lead=("qa6",), lead_steps=3)
    task = BabiTask(data=twin, tasks=(1, 6))
    run = replace(tiny_run, task=task, model=without_rehearsal(shrink(ModelSettings())), train=train)
    trainer = Trainer(run, tmp_path / "run", device=CPU, quiet=True)
    seen = _watched(trainer)
    trainer.train()
    parts = [set(batch.query.part[:, 0].tolist()) for batch in seen]
    assert parts[:3] == [{5}] * 3
    assert set().union(*parts[3:]) == {0, 5}
    # what would lead to the end is learned well enough at the first validation
    learned = replace(train, lead_steps=6, lead_until=100.0)
    trainer = Trainer(replace(run, train=learned), tmp_path / "learned", device=CPU, quiet=True)
    seen = _watched(trainer)
    trainer.train()
    assert [set(batch.query.part[:, 0].tolist()) for batch in seen] == parts
    for changes, complaint in (
        ({"lead": ("qa16",)}, "no part 'qa16' to begin with; what is trained on has qa1, qa6"),
        ({"focus": 0.0}, "need a focus above 0"),
        ({"focus_streams": -1.0}, "--train.focus-streams is -1.0; expected"),
        ({"last_rate": 1.5}, "--train.last-rate is 1.5; expected a share"),
        ({"focus": 0.0, "lead": (), "focus_streams": 3.0}, r"come more often \(3\) only with a focus above 0"),
    ):
        strange = replace(run, train=replace(train, **changes))
        with pytest.raises(BadInput, match=complaint):
            Trainer(strange, tmp_path / "strange", device=CPU, quiet=True).train()


def test_stages_of_a_lead_join_one_after_another(
    tiny_run: Run, shrink: Callable[[ModelSettings], ModelSettings], tmp_path: Path
) -> None:
    raw, twin = write_twin(tmp_path / "raw", stories=12), tmp_path / "prepared"
    for one, other in ((1, 8), (6, 18)):  # four tasks of two: names of stories are all that differs
        for file in raw.rglob(f"qa{one}_*"):
            file.with_name(file.name.replace(f"qa{one}_", f"qa{other}_")).write_text(file.read_text())
    import_babi(raw, twin)
    train = replace(
        tiny_run.train, steps=18, batch_size=16, eval_every=3, focus=10.0, lead=("qa6", "qa1+qa8"), lead_steps=5
    )
    task = BabiTask(data=twin, tasks=(1, 6, 8, 18))
    run = replace(tiny_run, task=task, model=without_rehearsal(shrink(ModelSettings())), train=train)

    def drawn(name: str, **changes: object) -> list[set[int]]:
        changed = replace(run, train=replace(train, **changes))
        trainer = Trainer(changed, tmp_path / name, device=CPU, quiet=True)
        seen = _watched(trainer)
        trainer.train()
        parts = [set(batch.query.part[:, 0].tolist()) for batch in seen]
        return [set().union(*parts[first : first + 3]) for first in range(0, len(parts), 3)]

    # five steps last until the validation after six
    alone, joined, everything = {5}, {0, 5, 7}, {0, 5, 7, 17}
    assert drawn("late") == [alone, alone, joined, joined, everything, everything]
    assert drawn("learned", lead_until=100.0) == [alone, joined] + [everything] * 4
    with pytest.raises(BadInput, match="no part 'qa2' to begin with"):
        drawn("strange", lead=("qa6", "qa1+qa2"))


def test_a_lead_that_finds_nothing_begins_anew_with_other_weights_and_resumes_so(
    twin: Path, tiny_run: Run, shrink: Callable[[ModelSettings], ModelSettings], tmp_path: Path
) -> None:
    train = replace(
        tiny_run.train, steps=8, batch_size=4, eval_every=2, checkpoint_every=3, focus=10.0, learning_rate=0.0,
        lead=("qa6",), lead_steps=2, lead_until=-1.0, lead_tries=3,
    )  # fmt: skip
    task = BabiTask(data=twin, tasks=(1, 6))
    run = replace(tiny_run, task=task, model=without_rehearsal(shrink(ModelSettings())), train=train)
    trainer = Trainer(run, tmp_path / "run", device=CPU, quiet=True)
    seen = _watched(trainer)
    _, record = trainer.train()
    parts = [set(batch.query.part[:, 0].tolist()) for batch in seen]
    assert parts[:6] == [{5}] * 6  # three leads of two steps
    assert set().union(*parts[6:]) == {0, 5}
    assert record["cost"]["lead_tries"] == 3
    # nothing is learned at a rate of 0: what the last step has is what the third draw gave, and Adam has seen two steps
    last, facts = load_tensors(tmp_path / "run" / "checkpoint.safetensors")
    for name, value in trainer._redraw(3).items():
        assert torch.equal(last[f"model.{name}"], value)
    assert (facts["began"], facts["tries"]) == (4, 3)
    assert {int(value) for name, value in last.items() if name.startswith("adam.step.")} == {4}
    first, second = trainer._redraw(1), trainer._redraw(2)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    # with something to learn, a run cut in the middle of a second lead ends as one that was not
    run = replace(run, train=replace(train, learning_rate=0.01))
    Trainer(run, tmp_path / "whole", device=CPU, quiet=True).train()
    Trainer(replace(run, train=replace(run.train, steps=3)), tmp_path / "cut", device=CPU, quiet=True).train()
    Trainer(run, tmp_path / "cut", device=CPU, quiet=True).train(resume=True)
    whole, cut = (load_tensors(tmp_path / name / "checkpoint.safetensors")[0] for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole if name.startswith("model."))


def test_a_lead_that_stays_is_drawn_as_if_all_of_it_were_wrong(
    twin: Path, tiny_run: Run, shrink: Callable[[ModelSettings], ModelSettings], tmp_path: Path
) -> None:
    train = replace(tiny_run.train, steps=12, batch_size=8, eval_every=2, focus=10.0, lead=("qa6",), lead_steps=2)
    run = replace(
        tiny_run, task=BabiTask(data=twin, tasks=(1, 6)), model=without_rehearsal(shrink(ModelSettings())), train=train
    )
    shares = []
    for stays in (False, True):
        run = replace(run, train=replace(train, lead_stays=stays))
        trainer = Trainer(run, tmp_path / str(stays), device=CPU, quiet=True)
        trainer.task = replace(trainer.task, part_errors=lambda metrics: {0: 100.0, 5: 0.0})
        seen = _watched(trainer)
        trainer.train()
        parts = torch.cat([batch.query.part[:, 0] for batch in seen[2:]])
        shares.append(float((parts == 5).float().mean()))
    assert shares[1] > 2 * shares[0]


def test_a_lead_stays_no_longer_than_something_is_rehearsed(
    twin: Path, tiny_run: Run, shrink: Callable[[ModelSettings], ModelSettings], tmp_path: Path
) -> None:
    train = replace(
        tiny_run.train, steps=22, batch_size=8, eval_every=2, focus=10.0, lead=("qa6",), lead_steps=2, lead_stays=True,
        rehearse_for=10,
    )  # fmt: skip
    model = shrink(ModelSettings())
    model = replace(model, rehearsal=replace(model.rehearsal, sampler="random"))
    run = replace(tiny_run, task=BabiTask(data=twin, tasks=(1, 6)), model=model, train=train)
    trainer = Trainer(run, tmp_path / "run", device=CPU, quiet=True)
    trainer.task = replace(trainer.task, part_errors=lambda metrics: {0: 100.0, 5: 0.0})
    seen = _watched(trainer)
    trainer.train()
    led, stayed, over = (torch.cat([b.query.part[:, 0] for b in seen[i:j]]) for i, j in ((0, 2), (2, 12), (12, 22)))
    shares = [float((parts == 5).float().mean()) for parts in (led, stayed, over)]
    assert shares[0] == 1 > shares[1] > 2 * shares[2]


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_lead_that_has_no_share_or_more_than_all_is_refused(
    twin: Path, tiny_run: Run, shrink: Callable[[ModelSettings], ModelSettings], tmp_path: Path, share: float
) -> None:
    train = replace(tiny_run.train, focus=10.0, lead=("qa6",), lead_steps=2, lead_share=share)
    model = without_rehearsal(shrink(ModelSettings()))
    run = replace(tiny_run, task=BabiTask(data=twin, tasks=(1, 6)), model=model, train=train)
    with pytest.raises(BadInput, match=f"can't have {share:g} of the streams; give a share above 0"):
        Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()


def test_tries_without_a_lead_are_refused(tiny_run: Run, tmp_path: Path) -> None:
    run = replace(tiny_run, train=replace(tiny_run.train, lead_tries=2))
    with pytest.raises(BadInput, match=r"A lead of 2 tries needs a part that leads.*--train.lead-tries 1"):
        Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
    assert not (tmp_path / "run").exists()


def test_a_lead_can_not_begin_anew_from_given_weights(tiny_model: Path, tiny_run: Run, tmp_path: Path) -> None:
    model = replace(tiny_run.model, weights_from=tiny_model)
    run = replace(tiny_run, model=model, train=replace(tiny_run.train, lead_tries=2))
    with pytest.raises(BadInput, match=r"begins anew with other weights.*--train.lead-tries 1"):
        Trainer(run, tmp_path / "run", device=CPU, quiet=True).train()
