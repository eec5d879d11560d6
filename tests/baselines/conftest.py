"""Every test here starts from the same random numbers, on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fixed_seed_and_one_thread() -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with tensors this small, threads only wait for one another
    yield
    torch.set_num_threads(threads)
