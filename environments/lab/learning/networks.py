"""What a small policy is made of: numbers per state and choice, or a network over the tokens of the state."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a turn chose among."""

    state: str
    """What the choice may depend on: the turn's anchor, or else what was said last."""
    choices: tuple[TokenIds, ...]
    """The sampled tokens of each message that the agent could write."""


class Network(Protocol):
    """One logit for each choice of a decision, and the gradient of a weighted sum of them."""

    parameters: dict[str, Array]
    """By name; arrays grow at the end of their first axis as states and choices are met."""

    def logits(self, decision: Decision) -> Array:
        """One per choice."""
        ...

    def gradient(self, decisions: Sequence[Decision], of_logits: Sequence[Array]) -> dict[str, Array]:
        """Of Σ `of_logits` x logits by each parameter, of the parameter's shape.

        Args:
            decisions: those whose logits were used.
            of_logits: `[decision][choice]`, the derivative by each logit.
        """
        ...


def probabilities(logits: Array) -> Array:
    """Softmax."""
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


class Table:
    """A logit of its own for each choice in each state: nothing is shared between states."""

    def __init__(self) -> None:
        """All choices are equally likely."""
        self.parameters: dict[str, Array] = {"logits": np.zeros(0)}
        self._index: dict[tuple[str, TokenIds], int] = {}

    def logits(self, decision: Decision) -> Array:
        """One per choice; 0 in a state that was never met."""
        places = self._places(decision)  # the table grows
        return self.parameters["logits"][places]

    def gradient(self, decisions: Sequence[Decision], of_logits: Sequence[Array]) -> dict[str, Array]:
        """See `Network`."""
        gradient = np.zeros_like(self.parameters["logits"])
        for decision, values in zip(decisions, of_logits, strict=True):
            np.add.at(gradient, self._places(decision), values)
        return {"logits": gradient}

    def _places(self, decision: Decision) -> list[int]:
        index = self._index
        places = [index.setdefault((decision.state, ids), len(index)) for ids in decision.choices]
        self.parameters["logits"] = _grown(self.parameters["logits"], len(index))
        return places


class MLP:
    """The last tokens of the state, embedded; a hidden layer of tanh; an output for each choice.

    Equal tokens share what is learned of them, so states are not independent as they are in a `Table`.
    """

    def __init__(
        self,
        encode: Callable[[str], Sequence[int]],
        *,
        vocabulary: int,
        seed: int,
        window: int = 10,
        dimensions: int = 16,
        hidden: int = 32,
    ) -> None:
        """Random weights; outputs are 0, so that all choices are equally likely.

        Args:
            encode: token ids of a text.
            vocabulary: one more than the largest of them.
            seed: of the weights.
            window: tokens of the state, counted from its end.
            dimensions: of an embedding.
            hidden: units.
        """
        rng = np.random.default_rng(seed)
        self._encode, self._window, self._hidden = encode, window, hidden
        self._index: dict[TokenIds, int] = {}
        self._tokens: dict[str, list[int]] = {}
        self.parameters: dict[str, Array] = {
            "embedding": rng.normal(0, 0.5, (vocabulary, dimensions)),
            "hidden": rng.normal(0, 1 / math.sqrt(window * dimensions), (window * dimensions, hidden)),
            "hidden_bias": np.zeros(hidden),
            "output": np.zeros((0, hidden)),
            "output_bias": np.zeros(0),
        }

    def logits(self, decision: Decision) -> Array:
        """One per choice."""
        places = self._places(decision)
        _, units = self._forward(decision)
        return self.parameters["output"][places] @ units + self.parameters["output_bias"][places]

    def gradient(self, decisions: Sequence[Decision], of_logits: Sequence[Array]) -> dict[str, Array]:
        """See `Network`."""
        gradient = {name: np.zeros_like(values) for name, values in self.parameters.items()}
        for decision, values in zip(decisions, of_logits, strict=True):
            places = self._places(decision)
            embedded, units = self._forward(decision)
            np.add.at(gradient["output"], places, np.outer(values, units))
            np.add.at(gradient["output_bias"], places, values)
            of_units = (values @ self.parameters["output"][places]) * (1 - units**2)
            gradient["hidden"] += np.outer(embedded, of_units)
            gradient["hidden_bias"] += of_units
            of_embedded = (self.parameters["hidden"] @ of_units).reshape(self._window, -1)
            np.add.at(gradient["embedding"], self._tokens_of(decision.state), of_embedded)
        return gradient

    def _forward(self, decision: Decision) -> tuple[Array, Array]:
        embedded = self.parameters["embedding"][self._tokens_of(decision.state)].reshape(-1)
        return embedded, np.tanh(embedded @ self.parameters["hidden"] + self.parameters["hidden_bias"])

    def _tokens_of(self, state: str) -> list[int]:
        tokens = self._tokens.get(state)
        if tokens is None:
            last = list(self._encode(state))[-self._window :]
            tokens = self._tokens[state] = [0] * (self._window - len(last)) + last
        return tokens

    def _places(self, decision: Decision) -> list[int]:
        index = self._index
        places = [index.setdefault(ids, len(index)) for ids in decision.choices]
        for name in ("output", "output_bias"):
            self.parameters[name] = _grown(self.parameters[name], len(index))
        return places


class Adam:
    """Ascent by Adam (arXiv 1412.6980), on parameters that may have grown since the step before."""

    def __init__(self, learning_rate: float, *, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        """No step was taken."""
        self.learning_rate, self._betas, self._steps = learning_rate, betas, 0
        self._means: dict[str, Array] = {}
        self._squares: dict[str, Array] = {}

    def step(self, parameters: dict[str, Array], gradient: dict[str, Array]) -> None:
        """Change the parameters in place, uphill."""
        self._steps += 1
        first, second = self._betas
        for name, values in gradient.items():
            mean = first * _grown(self._means.get(name, values[:0]), len(values)) + (1 - first) * values
            square = second * _grown(self._squares.get(name, values[:0]), len(values))
            square += (1 - second) * values**2
            self._means[name], self._squares[name] = mean, square
            unbiased = np.sqrt(square / (1 - second**self._steps)) + 1e-8
            parameters[name] += self.learning_rate * mean / (1 - first**self._steps) / unbiased


def _grown(array: Array, length: int) -> Array:
    """The array with zeros at the end of its first axis."""
    if len(array) >= length:
        return array
    return np.concatenate([array, np.zeros((length - len(array), *array.shape[1:]))])
