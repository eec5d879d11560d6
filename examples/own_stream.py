"""Train a small rehearsal memory on streams of item numbers, then follow one stream and ask it at any time."""

from dataclasses import replace
from pathlib import Path

import torch

from remem import StreamMemory, Trainer
from remem.experiments.presets import DEMO

# Two hundred steps learn little; leave `train` as it is for a memory that answers well.
run = replace(
    DEMO,
    train=replace(DEMO.train, steps=200, eval_every=100),
    sampler_train=replace(DEMO.sampler_train, steps=100, eval_every=100),
)
folder = Path("runs/own-stream")
_, record = Trainer(run, folder, device=torch.device("cpu"), quiet=True).train()
print("test accuracy:", record["metrics"]["test"])

memory = StreamMemory.open(folder)
for item in [3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9, 7]:
    memory.write(item)
    print(
        memory.state.items, "items,", memory.state.num_bytes(), "bytes, answer to question 0:", memory.query(0).answer
    )

memory.save("stream.safetensors")  # go on tomorrow with memory.load("stream.safetensors")
