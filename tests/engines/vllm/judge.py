"""Are an answer's tokens this model's? Asked of transformers, token by token, whichever engine gave them.

Engines round in another order, so that near ties fall either way and texts part: equal texts are no measure. How far a
token's logit lies below the best is one: little where the right prompt was read, much where another was.
"""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class Judge:
    """The checkpoint in float32, on one thread."""

    def __init__(self, model: Path) -> None:
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def gap(self, prompt: list[int], answer: list[int]) -> float:
        """Give the largest distance of a greedy answer's logits from the best, each behind what came before it."""
        with torch.inference_mode():
            ids = torch.tensor([prompt + answer[:-1]])
            logits = self._model(ids, logits_to_keep=len(answer)).logits[0]
        chosen = logits[range(len(answer)), answer]
        return float((logits.max(-1).values - chosen).max())
