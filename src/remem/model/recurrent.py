"""A bi-directional GRU over padded sequences, without packing: padding changes nothing, lengths stay on the device.

And one step of a GRU, for what has more to do between two steps than a fused one allows.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from remem.errors import BadInput


class BiGRU(nn.Module):
    """Two GRUs, one reading each sequence backwards; half of the output width belongs to each."""

    def __init__(self, *, input_dim: int, output_dim: int) -> None:
        super().__init__()
        if output_dim % 2:
            raise BadInput(f"A bi-directional GRU splits its width in two; {output_dim} is odd.")
        self.ahead = nn.GRU(input_dim, output_dim // 2, batch_first=True)
        self.back = nn.GRU(input_dim, output_dim // 2, batch_first=True)

    def forward(
        self, items: Float[Tensor, "b n i"], mask: Bool[Tensor, "b n"]
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b d"]]:
        """Features of every item, and of the whole sequence: the last state of each direction."""
        turned = reversal(mask)
        ahead = in_autocast_type(self.ahead(items)[0])
        back = in_autocast_type(self.back(_take(items, turned))[0])
        last = (mask.sum(dim=1) - 1).clamp(min=0)[:, None]
        whole = torch.cat([_take(ahead, last), _take(back, last)], dim=-1).squeeze(1)
        return torch.cat([ahead, _take(back, turned)], dim=-1), whole


def in_autocast_type(values: Tensor) -> Tensor:
    """What a GRU gave, in the type that autocast asks for: cuDNN gives float16 under any, which no fast path takes."""
    device = values.device.type
    if values.dtype != torch.float16 or not torch.is_autocast_enabled(device):
        return values
    return values.to(torch.get_autocast_dtype(device))


def reversal(mask: Bool[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """Indices that turn each sequence around and leave its padding where it is; applied twice, nothing has changed."""
    place = torch.arange(mask.shape[1], device=mask.device)
    length = mask.sum(dim=1, keepdim=True)
    return torch.where(mask, length - 1 - place, place)


def _take(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[-1]))


def gru_step(
    inputs: Float[Tensor, "*b g"], recurrent: Float[Tensor, "*b g"], state: Float[Tensor, "*b h"]
) -> Float[Tensor, "*b h"]:
    """A GRU whose products W x and U h are given: r, z = sigma(x + h)   n = tanh(x_n + r h_n)   h' = (1-z) n + z h."""
    kept, new = gru_gates(inputs, recurrent)
    return new + kept * (state - new)


def gru_gates(
    inputs: Float[Tensor, "... g"], recurrent: Float[Tensor, "... g"]
) -> tuple[Float[Tensor, "... h"], Float[Tensor, "... h"]]:
    """z and n; the products broadcast against each other."""
    (reset_in, keep_in, new_in), (reset, keep, new) = inputs.chunk(3, dim=-1), recurrent.chunk(3, dim=-1)
    return torch.sigmoid(keep_in + keep), torch.tanh(new_in + torch.sigmoid(reset_in + reset) * new)
