from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from remem.ops import onednn
from remem.ops.attention import attend
from remem.ops.onednn import keeps_all_bits, products_by_onednn, taken
from remem.ops.paths import reference_only

CPU = torch.device("cpu")


@pytest.fixture
def onednn_taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a processor where it keeps all bits, whatever this one does."""
    monkeypatch.setattr(onednn, "keeps_all_bits", lambda: True)
    with products_by_onednn(CPU):
        yield


def test_products_are_as_exact_as_torchs_own() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(300, 300, generator=generator) for _ in range(2))
    true = left.double() @ right.double()
    with products_by_onednn(CPU):
        error = (left @ right - true).abs().max().item()
    assert error < 4 * (left @ right - true).abs().max().item()
    assert error < 1e-3  # of numbers up to about 80, of which bf16 would keep three digits


def test_it_is_taken_inside_alone_and_everything_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "keeps_all_bits", lambda: True)
    before = torch.get_float32_matmul_precision()

    def fail() -> None:
        with products_by_onednn(CPU):
            assert taken()
            assert torch.get_float32_matmul_precision() == "medium"
            raise ZeroDivisionError

    assert not taken()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert not taken()
    assert torch.get_float32_matmul_precision() == before


def test_it_is_left_alone_where_it_rounds_on_a_gpu_and_where_the_plain_way_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onednn, "keeps_all_bits", lambda: True)
    with products_by_onednn(torch.device("cuda")):
        assert not taken()
    with reference_only(), products_by_onednn(CPU):
        assert not taken()
    monkeypatch.setattr(onednn, "keeps_all_bits", lambda: False)
    with products_by_onednn(CPU):
        assert not taken()
        assert torch.get_float32_matmul_precision() == "highest"


def test_a_product_that_rounds_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_all_bits.cache_clear()
    rounded = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: rounded(a.bfloat16(), b.bfloat16()).float())
    assert not keeps_all_bits()
    keeps_all_bits.cache_clear()


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_the_same_whichever_products_are_taken(masked: bool, onednn_taken: None) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 2, n, 8, generator=generator) for n in (5, 7, 7))
    mask = torch.rand(3, 1, 1, 7, generator=generator) > 0.5 if masked else None
    if mask is not None:
        mask[..., 0] = True
    mine = attend(q, k, v, mask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onednn, "_taken", False)
        torch.testing.assert_close(attend(q, k, v, mask), mine)
