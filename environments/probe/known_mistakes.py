"""What trainers do to credit instead of passing it on: each is a weight per token, and has a sentence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from environments.probe.canary_tokens import CanaryTokens, Flags, Ids, Numbers
from environments.trainers.canary import GROUP_SIZE
from environments.trajectory import IGNORED

Credits = Callable[[CanaryTokens], Numbers]
Choice = Callable[[CanaryTokens], Flags]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistakes:
    """Every combination of what is taken for credit, what divides it and what is left out."""

    sentences: Sequence[tuple[str, ...]]
    """Of each combination; none: no mistake."""
    weights: Numbers
    """(combinations, tokens), on scales of their own; 0 where nobody sampled."""


def known_mistakes(tokens: CanaryTokens) -> Mistakes:
    """Those that the canaries tell apart."""
    credit = np.stack([of(tokens) for of in _CREDIT.values()])
    divisor = np.stack([of(tokens) for of in _DIVISOR.values()])
    kept = np.stack([tokens.trained & chosen(tokens) for chosen in _KEPT.values()])
    weights = credit[:, None, None] / divisor[None, :, None] * kept[None, None]
    sentences = [tuple(filter(None, said)) for said in product(_CREDIT, _DIVISOR, _KEPT)]
    return Mistakes(sentences=sentences, weights=weights.reshape(len(sentences), -1))


def _scores(tokens: CanaryTokens) -> Numbers:
    return tokens.numbers("score")


def _centred_scores(tokens: CanaryTokens) -> Numbers:
    return _scores(tokens) - _over(tokens, "trajectory", np.mean)


def _scores_less_those_of_others(tokens: CanaryTokens) -> Numbers:
    rollouts = _over(tokens, "trajectory", len)
    return _centred_scores(tokens) * rollouts / (rollouts - 1)


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


def _of_group(tokens: CanaryTokens, number: Callable[[Numbers], float]) -> Numbers:
    """A number of the advantages of a token's group, in which each trained token counts once."""
    groups = tokens.ids("group")
    numbers = [number(tokens.advantages[(groups == group) & tokens.trained]) for group in np.unique(groups)]
    return np.array(numbers)[groups]


def _centred_in_group(tokens: CanaryTokens) -> Numbers:
    return tokens.advantages - _of_group(tokens, np.mean)


def _row_sums(tokens: CanaryTokens) -> Numbers:
    rows = tokens.ids("row")
    return _sums(rows, np.where(tokens.trained, tokens.advantages, 0.0))


def _row_sums_in_group(*, normalised: bool) -> Credits:
    """As a trainer that wants one reward a row makes them, of all the rows that it wants of a group."""

    def credit(tokens: CanaryTokens) -> Numbers:
        groups, sums = tokens.ids("group"), _row_sums(tokens)
        _, firsts = np.unique(tokens.ids("row"), return_index=True)
        weights = np.zeros(len(groups))
        for group in np.unique(groups):
            of_rows = sums[[first for first in firsts.tolist() if groups[first] == group]]
            padded = np.concatenate([of_rows, np.zeros(GROUP_SIZE - len(of_rows))])
            inside = groups == group
            deviation = padded.std() if normalised else 1.0
            weights[inside] = (sums[inside] - padded.mean()) / deviation
        return weights

    return credit


def _to_go(tokens: CanaryTokens) -> Numbers:
    """The sum of the advantages from each token to its row's end."""
    rows, weights = tokens.ids("row"), np.where(tokens.trained, tokens.advantages, 0.0)
    return np.concatenate([np.cumsum(weights[rows == row][::-1])[::-1] for row in np.unique(rows)])


def _advantage_of_turn(index: int) -> Credits:
    """That of the first (0) or the last (-1) turn of a token's row."""

    def credit(tokens: CanaryTokens) -> Numbers:
        rows = tokens.ids("row")
        of_row = [tokens.advantages[(rows == row) & tokens.trained][index] for row in np.unique(rows)]
        return np.array(of_row)[rows]

    return credit


def _sum_of_labels(tokens: CanaryTokens) -> Numbers:
    rows = tokens.ids("row")
    return _sums(rows, np.where(tokens.trained, tokens.ids("token_id"), IGNORED))


def _tokens_of_row(tokens: CanaryTokens) -> Numbers:
    return _count(tokens.ids("row"), tokens.ids("index") > 0) + 1.0


def _tokens_of_completion(tokens: CanaryTokens) -> Numbers:
    return _count(tokens.ids("row"), ~tokens.flags("is_prompt"))


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


def _sums(ids: Ids, numbers: Numbers | Ids) -> Numbers:
    """Over the tokens with the same id."""
    return np.bincount(ids, numbers.astype(np.float64))[ids].astype(np.float64)


def _count(ids: Ids, counted: Flags) -> Numbers:
    return np.maximum(np.bincount(ids, counted), 1)[ids]


def _turn_of_row(*, last: bool) -> Choice:
    def chosen(tokens: CanaryTokens) -> Flags:
        rows, turns = tokens.ids("row"), tokens.ids("turn")
        of_row = [turns[(rows == row) & tokens.trained][-1 if last else 0] for row in np.unique(rows)]
        return turns == np.array(of_row)[rows]

    return chosen


def _last_token_of_row(tokens: CanaryTokens) -> Flags:
    return _turn_of_row(last=True)(tokens) & tokens.flags("is_turn_end")


_CREDIT: Mapping[str, Credits] = {
    "": lambda tokens: tokens.advantages,
    "advantages are ignored: scores of rollouts are used, normalised in each group": _normalised_scores(
        "trajectory"
    ),
    "advantages are ignored: scores of rows are used, normalised in each group": _normalised_scores("row"),
    "advantages are ignored: scores of rollouts are used, less the mean of their group": _centred_scores,
    "advantages are ignored: scores of rollouts are used, less the mean of the others in their group": (
        _scores_less_those_of_others
    ),
    "advantages are ignored: raw scores of rollouts are used": _scores,
    "advantages are ignored: every token weighs the same": lambda tokens: np.ones(len(tokens.facts)),
    "only the signs of the advantages are used": lambda tokens: np.sign(tokens.advantages),
    "the sizes of the advantages are used without their signs": lambda tokens: np.abs(tokens.advantages),
    "advantages are normalised over all tokens of the batch": _whitened_advantages,
    "advantages are normalised over the tokens of each group": lambda tokens: (
        _centred_in_group(tokens) / _of_group(tokens, np.std)
    ),
    "the mean of its group is taken off every advantage once more": _centred_in_group,
    "every token of a row gets the sum of its row's advantages": _row_sums,
    "advantages are taken for rewards: every token of a row gets their sum, less the mean of its group": (
        _row_sums_in_group(normalised=False)
    ),
    "advantages are taken for rewards: every token of a row gets their sum, normalised in each group": (
        _row_sums_in_group(normalised=True)
    ),
    "advantages are taken for rewards: a token gets the sum of those from it to its row's end": _to_go,
    "every token of a row gets the advantage of the row's last turn": _advantage_of_turn(-1),
    "every token of a row gets the advantage of the row's first turn": _advantage_of_turn(0),
    "masks are labels and are taken for numbers: a token weighs its id": lambda tokens: (
        tokens.advantages * tokens.ids("token_id")
    ),
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
    "rows weigh 1/their length, replies included": _tokens_of_completion,
    "rows weigh 1/their length, prompt and replies included": _tokens_of_row,
    "rows weigh 1/the sum of their labels, which are taken for a mask of 0 and 1": _sum_of_labels,
    "groups weigh 1/the standard deviation of their advantages": lambda tokens: _of_group(tokens, np.std),
    "groups weigh 1/the standard deviation of their scores": lambda tokens: _over(
        tokens, "trajectory", np.std
    ),
}
_KEPT: Mapping[str, Choice] = {
    "": lambda tokens: tokens.trained,
    "negative advantages are ignored": lambda tokens: tokens.advantages > 0,
    "positive advantages are ignored": lambda tokens: tokens.advantages < 0,
    "turns that nobody scored are ignored": lambda tokens: ~np.isnan(tokens.numbers("reward")),
    "rows after the first of a forked rollout are ignored": lambda tokens: ~tokens.flags("is_later_row"),
    "forked rollouts are ignored": lambda tokens: ~tokens.flags("is_forked"),
    "summaries are ignored": lambda tokens: ~tokens.flags("is_summary"),
    "only the last turn of a row is trained": _turn_of_row(last=True),
    "only the first turn of a row is trained": _turn_of_row(last=False),
    "only the last token of a turn is trained": lambda tokens: tokens.flags("is_turn_end"),
    "only the last token of a row is trained": _last_token_of_row,
    "the last trained token of a row is ignored": lambda tokens: ~_last_token_of_row(tokens),
    "only the first token of a turn is trained": lambda tokens: tokens.numbers("offset") == 0,
    "the last token of a turn is ignored": lambda tokens: ~tokens.flags("is_turn_end"),
    "the first token of a turn is ignored": lambda tokens: tokens.numbers("offset") > 0,
}
