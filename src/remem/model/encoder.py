"""Segment encoders: X^t to features F^t (Sec. 3.2). They never see the memory, so all segments are encoded at once."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from remem.model.packing import without_padding
from remem.model.recurrent import BiGRU
from remem.model.transformer import EncoderLayer, PositionCode, attendable, final_norm


class TransformerEncoder(nn.Module):
    """Transformer encoder over the items of one segment."""

    def __init__(
        self,
        *,
        position: PositionCode,
        item_dim: int,
        num_layers: int,
        num_heads: int,
        dropout: float,
        pre_norm: bool = False,
    ) -> None:
        super().__init__()
        self.position = position
        self.layers = nn.ModuleList(
            EncoderLayer(dim=item_dim, num_heads=num_heads, dropout=dropout, pre_norm=pre_norm)
            for _ in range(num_layers)
        )
        self.norm = final_norm(item_dim, pre_norm)

    def forward(self, items: Float[Tensor, "s n d"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, "s n d"]:
        features, open_mask = self.position(without_padding(items, mask)), attendable(mask)
        for layer in self.layers:
            features = layer(features, open_mask)
        return self.norm(features)


class GRUEncoder(nn.Module):
    """Bi-directional GRU over the items of one segment (the ablation of Table 6)."""

    def __init__(self, *, item_dim: int) -> None:
        super().__init__()
        self.gru = BiGRU(input_dim=item_dim, output_dim=item_dim)

    def forward(self, items: Float[Tensor, "s n d"], mask: Bool[Tensor, "s n"]) -> Float[Tensor, "s n d"]:
        features, _ = self.gru(without_padding(items, mask), mask)
        return features
