"""Settings of the model: the paper's values as defaults, and the departures of `rm`."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from itertools import pairwise

import pytest

import remem.settings.model as model_settings
from remem.experiments.variation import leaves
from remem.settings.model import ModelSettings, RehearsalSettings, rm_improvements, without_rehearsal


def differences(one: ModelSettings, two: ModelSettings) -> set[str]:
    before, after = leaves(one), leaves(two)
    return {name for name in before if before[name] != after[name]}


def test_the_defaults_are_the_papers() -> None:
    model = ModelSettings()
    assert (model.item_dim, model.model_dim, model.machine.num_slots, model.reasoner.num_hops) == (128, 128, 20, 2)
    rehearsal = model.rehearsal
    assert (rehearsal.recollection_weight, rehearsal.familiarity_weight, rehearsal.reason_weight) == (1.0, 0.5, 1.0)
    assert (rehearsal.num_fragments, rehearsal.mask_ratio, rehearsal.replace_ratio) == (6, 0.5, 0.5)
    # J: all other items
    assert rehearsal.num_distractors is None


def departures() -> set[str]:
    """Fields whose help, the string below them, starts with "Ours"."""
    found = set()
    for node in ast.parse(inspect.getsource(model_settings)).body:
        if isinstance(node, ast.ClassDef):
            for line, below in pairwise(node.body):
                help_text = below.value.value if isinstance(below, ast.Expr) and hasattr(below.value, "value") else ""
                if isinstance(line, ast.AnnAssign) and str(help_text).startswith("Ours"):
                    found.add(ast.unparse(line.target))
    return found


def test_improvements_touch_only_what_departs_from_the_printed_text() -> None:
    paper = ModelSettings(item_dim=32)
    changed = {name.split(".")[-1] for name in differences(paper, rm_improvements(paper))}
    assert {"aligned_gain", "slot_identity", "read_norm", "scaled_recall"} <= changed
    # the paper gives no position code at all, so a learned one is no departure
    assert changed - {"position"} <= departures()
    # and the settings they start from are left alone
    assert paper == ModelSettings(item_dim=32)


def test_without_rehearsal_only_its_two_losses_are_gone() -> None:
    model = rm_improvements(ModelSettings())
    plain = without_rehearsal(model)
    assert differences(model, plain) == {"rehearsal.recollection_weight", "rehearsal.familiarity_weight"}
    assert model.rehearsal.enabled
    assert not plain.rehearsal.enabled


@pytest.mark.parametrize(
    ("weights", "enabled"), [((1.0, 0.5), True), ((1.0, 0.0), True), ((0.0, 0.5), True), ((0.0, 0.0), False)]
)
def test_rehearsal_is_enabled_while_any_of_its_losses_counts(weights: tuple[float, float], enabled: bool) -> None:
    settings = replace(RehearsalSettings(), recollection_weight=weights[0], familiarity_weight=weights[1])
    assert settings.enabled is enabled
