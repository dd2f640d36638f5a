"""What trainers do to credit instead of passing it on: each is a weight per token, and has a sentence."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from environments.probe.canary_tokens import CanaryTokens, Flags, Ids, Numbers

Credits = Callable[[CanaryTokens], Numbers]
Choice = Callable[[CanaryTokens], Flags]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One or several of the known ones together; none of them is no mistake."""

    sentences: tuple[str, ...]
    weights: Numbers
    """Per token, on a scale of its own; 0 where nobody sampled."""


def known_mistakes(tokens: CanaryTokens) -> Iterator[Mistake]:
    """Every combination of what is taken for credit, what divides it and what is left out."""
    credit = {said: of(tokens) for said, of in _CREDIT.items()}
    divisor = {said: of(tokens) for said, of in _DIVISOR.items()}
    kept = {said: tokens.trained & chosen(tokens) for said, chosen in _KEPT.items()}
    parts = product(credit, divisor, kept)
    for said in parts:
        weights = np.where(kept[said[2]], credit[said[0]] / divisor[said[1]], 0.0)
        yield Mistake(sentences=tuple(filter(None, said)), weights=weights)


def _scores(tokens: CanaryTokens) -> Numbers:
    return tokens.numbers("score")


def _centred_scores(tokens: CanaryTokens) -> Numbers:
    return _scores(tokens) - _over(tokens, "trajectory", np.mean)


def _normalised_scores(name: str) -> Credits:
    def normalised(tokens: CanaryTokens) -> Numbers:
        return (_scores(tokens) - _over(tokens, name, np.mean)) / _over(tokens, name, np.std)

    return normalised


def _over(tokens: CanaryTokens, name: str, number: Callable[..., float]) -> Numbers:
    """A number of the scores of a token's group, in which each trajectory or each row counts once."""
    groups, scores = tokens.ids("group"), _scores(tokens)
    _, firsts = np.unique(tokens.ids(name), return_index=True)
    of_group = {
        group: number([scores[first] for first in firsts.tolist() if groups[first] == group])
        for group in np.unique(groups).tolist()
    }
    return np.array([of_group[group] for group in groups.tolist()])


def _whitened_advantages(tokens: CanaryTokens) -> Numbers:
    trained = tokens.advantages[tokens.trained]
    return (tokens.advantages - trained.mean()) / trained.std()


def _group_normalised_advantages(tokens: CanaryTokens) -> Numbers:
    groups = tokens.ids("group")
    normalised = np.zeros(len(groups))
    for group in np.unique(groups):
        inside = (groups == group) & tokens.trained
        trained = tokens.advantages[inside]
        normalised[inside] = (trained - trained.mean()) / trained.std()
    return normalised


def _mean_advantage_of(name: str) -> Credits:
    def mean(tokens: CanaryTokens) -> Numbers:
        ids = tokens.ids(name)
        sums = np.bincount(ids, np.where(tokens.trained, tokens.advantages, 0.0))
        return sums[ids] / _count(ids, tokens.trained)

    return mean


def _length_of(name: str) -> Credits:
    def length(tokens: CanaryTokens) -> Numbers:
        ids = tokens.ids(name)
        # Those that nobody sampled have no turn; their weight is 0 all the same.
        return _count(np.where(ids < 0, ids.max() + 1, ids), tokens.trained | (ids < 0))

    return length


def _count(ids: Ids, counted: Flags) -> Numbers:
    return np.maximum(np.bincount(ids, counted), 1)[ids]


def _last_turn_of_row(tokens: CanaryTokens) -> Flags:
    rows, turns = tokens.ids("row"), tokens.ids("turn")
    last = np.full(rows.max() + 1, -1)
    np.maximum.at(last, rows, turns)
    return turns == last[rows]


_CREDIT: Mapping[str, Credits] = {
    "": lambda tokens: tokens.advantages,
    "advantages are ignored: scores of rollouts are used, normalised in each group": _normalised_scores(
        "trajectory"
    ),
    "advantages are ignored: scores of rows are used, normalised in each group": _normalised_scores("row"),
    "advantages are ignored: scores of rollouts are used, less the mean of their group": _centred_scores,
    "advantages are ignored: raw scores of rollouts are used": _scores,
    "advantages are ignored: every token weighs the same": lambda tokens: np.ones(len(tokens.facts)),
    "only the signs of the advantages are used": lambda tokens: np.sign(tokens.advantages),
    "the sizes of the advantages are used without their signs": lambda tokens: np.abs(tokens.advantages),
    "advantages are normalised over all tokens of the batch": _whitened_advantages,
    "advantages are normalised over the tokens of each group": _group_normalised_advantages,
    "every token of a row gets the mean of its row's advantages": _mean_advantage_of("row"),
    "every token of a rollout gets the mean of its advantages": _mean_advantage_of("trajectory"),
    "turns weigh their own reward, and not their advantage": lambda tokens: np.nan_to_num(
        tokens.numbers("reward")
    ),
}
_DIVISOR: Mapping[str, Credits] = {
    "": lambda tokens: np.ones(len(tokens.facts)),
    "turns weigh 1/their own length: a turn of L tokens counts as one of 1 token": _length_of("turn"),
    "rows weigh 1/their trained tokens": _length_of("row"),
    "rollouts weigh 1/their trained tokens": _length_of("trajectory"),
    "groups weigh 1/their trained tokens": _length_of("group"),
}
_KEPT: Mapping[str, Choice] = {
    "": lambda tokens: tokens.trained,
    "negative advantages are ignored": lambda tokens: tokens.advantages > 0,
    "positive advantages are ignored": lambda tokens: tokens.advantages < 0,
    "turns that nobody scored are ignored": lambda tokens: ~np.isnan(tokens.numbers("reward")),
    "rows after the first of a forked rollout are ignored": lambda tokens: ~tokens.flags("is_later_row"),
    "forked rollouts are ignored": lambda tokens: ~tokens.flags("is_forked"),
    "summaries are ignored": lambda tokens: ~tokens.flags("is_summary"),
    "only the last turn of a row is trained": _last_turn_of_row,
    "only the last token of a turn is trained": lambda tokens: tokens.flags("is_turn_end"),
    "the last token of a turn is ignored": lambda tokens: ~tokens.flags("is_turn_end"),
    "the first token of a turn is ignored": lambda tokens: tokens.numbers("offset") > 0,
}
