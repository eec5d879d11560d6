from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from remem.build import build_model
from remem.experiments.presets import DEMO
from remem.settings.run import TrainSettings
from remem.tasks.load import load_task
from remem.training.precision import layers_in_bf16, linear_layers, rounded
from remem.training.step import EagerStep

CODE = """
from dataclasses import replace
import pytest
import torch
from remem.build import build_model, build_sampler
from remem.experiments.presets import DEMO
from remem.tasks.load import load_task
from remem.training.objective import MemoryObjective
from remem.training.precision import autocast, linear_layers, rounded

task = load_task(replace(DEMO.task, samples_per_chain=2))
batch = task.load("train").batch(0, torch.arange(6))
torch.manual_seed(0)
model = build_model(DEMO.model, task.codec)
teacher = build_sampler(DEMO.model, task.codec).eval().requires_grad_(False)
objective = MemoryObjective(model, DEMO.model.rehearsal, teacher)
results = []
for compiled in (False, True):
    if compiled:
        objective.compile(backend="aot_eager")
    for layers in ([], linear_layers(model)):
        torch.manual_seed(4)
        model.zero_grad()
        with autocast(torch.device("cpu"), "bf16"), rounded(layers):
            total, logs = objective(batch)
        total.backward()
        results.append([*logs.values(), *(p.grad.clone() for p in model.parameters())])
names = [*logs, *(name for name, _ in model.named_parameters())]
for plain, fast in (results[:2], results[2:]):
    for name, a, b in zip(names, plain, fast, strict=True):
        assert a.dtype == b.dtype
        if plain is results[2] and name == "reasoner.next_query.weight":
            # all hops share it: compiled, autocast adds their gradients in 32 bits
            torch.testing.assert_close(a, b, rtol=2**-7, atol=2**-7 * float(a.abs().max()))
        else:
            assert torch.equal(a, b), name
stats = torch._dynamo.utils.counters["stats"]
compiled = stats["unique_graphs"]
with autocast(torch.device("cpu"), "bf16"), rounded(linear_layers(model)):
    objective(batch)[0].backward()
print(compiled, stats["unique_graphs"] - compiled)
"""


@pytest.mark.slow
def test_weights_rounded_at_once_give_the_losses_and_gradients_of_autocast_to_the_bit() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    compiled, anew = map(int, done.stdout.split())
    assert compiled >= 4, "nothing was compiled"
    assert anew == 0, "each step compiles anew"


def test_every_layer_of_encoder_decoder_and_reasoner_is_rounded_and_nothing_else() -> None:
    model = build_model(DEMO.model, load_task(DEMO.task).codec)
    names = {name for name, module in model.named_modules() if module in linear_layers(model)}
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert {"memorizer.encoder.layers.0.attention.query", "decoder.layers.0.recall.value"} <= names
    assert {name.split(".")[0] for name in names} == {"memorizer", "decoder", "reasoner"}
    assert {name for name in linear - names if not name.startswith("memorizer.writer")} == {
        "decoder.familiarity",
        "head.classify",
    }


def test_rounding_leaves_the_weights_as_they_were_even_after_an_error() -> None:
    layer = nn.Linear(3, 2)
    weight, bias = layer.weight, layer.bias
    try:
        with rounded([layer]):
            assert layer.weight.dtype == layer.bias.dtype == torch.bfloat16
            assert torch.equal(layer.weight, weight.bfloat16())
            raise KeyError
    except KeyError:
        pass
    assert layer.weight is weight
    assert layer.bias is bias


def test_a_layer_that_was_not_used_has_no_gradient() -> None:
    used, unused = nn.Linear(3, 3), nn.Linear(3, 3)
    with rounded([used, unused]):
        out = used(torch.randn(2, 3, dtype=torch.bfloat16))
    out.sum().backward()
    assert used.weight.grad is not None
    assert used.weight.grad.dtype == torch.float32
    assert unused.weight.grad is None


def test_nothing_is_rounded_on_a_cpu_or_in_float32() -> None:
    task = load_task(DEMO.task)
    model = build_model(DEMO.model, task.codec)
    assert layers_in_bf16(model, "bf16") == layers_in_bf16(model, "float32") == []
    step = EagerStep(model, lambda batch: (torch.zeros(()), {}), task.load("train"), TrainSettings(precision="bf16"))
    assert step.layers == []
