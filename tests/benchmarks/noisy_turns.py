"""Games whose best credit is known, and small transformers that learn them: what the table of learning runs.

A game shows one of eight signs at each turn; one of four keys is right for it, and any other token is wrong.
A right key earns 1 / turns, plus noise; `kind` says what is paid when. The credit is `turn_advantages`.
"""

from dataclasses import dataclass
from functools import cache

import torch

from tests.benchmarks.stacked_transformers import Adam, first_weights, logits_of
from turnwise.credit import turn_advantages

SIGNS, KEYS = 8, 4
RIGHT = torch.tensor([SIGNS + (7 * sign + sign // KEYS) % KEYS for sign in range(SIGNS)])
"""The token that is right for each sign."""
SIBLINGS = 4
WARM_UP = 5
"""Steps in which the rate rises."""
EVERY, POSITIONS = 2, 128
"""Steps between two measurements, and the turns that one is over."""


@dataclass(frozen=True, kw_only=True)
class Game:
    turns: int
    noise: float = 0.0
    """Standard deviation of what is added to a turn's reward, in right keys."""
    kind: str = "independent"
    """`stop`: a wrong key ends the rollout; `chain`: paid while all keys so far were right; `delayed`: all is
    paid at the last turn."""
    skill: float = 0.3
    """P(right key) of the demonstrator that the first weights imitate."""
    lessons: int = 200
    """Steps of that imitation."""
    groups: int = 2
    """Groups of four rollouts a step."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    estimator: str
    params: tuple[tuple[str, float], ...] = ()
    permuted: bool = False
    """Whether a step's advantages change places among its turns: a control."""


@dataclass(frozen=True, kw_only=True)
class Run:
    arm: str
    rate: float
    seed: int
    """Of the first weights, the signs, the noise and the draws: the same for all arms."""


ARMS = {
    "gamma=1": Arm(estimator="turn_return"),
    "gamma=0.5": Arm(estimator="turn_return", params=(("gamma", 0.5),)),
    "gamma=0": Arm(estimator="turn_return", params=(("gamma", 0.0),)),
    "scalar": Arm(estimator="rloo"),
    "grpo": Arm(estimator="grpo"),
    "control": Arm(estimator="turn_return", permuted=True),
}


@cache
def imitated(turns, skill, steps, seeds, rows=32, rate=3e-3):
    """Weights that imitate a demonstrator who is right with probability `skill`."""
    weights = {name: value.requires_grad_() for name, value in first_weights(seeds, 2 * turns).items()}
    adam = Adam(weights, torch.full((len(seeds),), rate))
    generators = [torch.Generator().manual_seed(7_000 + seed) for seed in seeds]
    shape = (rows, turns)
    for step in range(steps):
        signs = torch.stack([torch.randint(SIGNS, shape, generator=each) for each in generators])
        is_right = torch.stack([torch.rand(shape, generator=each) for each in generators]) < skill
        others = torch.stack([torch.randint(1, KEYS, shape, generator=each) for each in generators])
        wrong = (RIGHT[signs] - SIGNS + others) % KEYS + SIGNS
        ids = torch.stack([signs, torch.where(is_right, RIGHT[signs], wrong)], -1).flatten(2)
        factor = min(1.0, (step + 1) / 20, 3 * (steps - step) / steps)
        adam.step(-_log_probs(weights, ids).mean((1, 2)).sum(), factor)
    return {name: value.detach() for name, value in weights.items()}


@torch.no_grad()
def play(weights, signs, draws, *, ends_when_wrong):
    """Keys by inverting the distribution at uniform draws, all `[run, row, turn]`.

    Returns the ids, whether each turn was played, whether its key was right, and the probability of that.
    """
    ids = torch.zeros(*signs.shape[:2], 2 * signs.shape[2], dtype=torch.long)
    ids[..., 0::2] = signs
    played, right, chance = (torch.zeros(signs.shape) for _ in range(3))
    goes_on, seen = torch.ones(signs.shape[:2]), []
    for turn in range(signs.shape[2]):
        new = ids[..., max(0, 2 * turn - 1) : 2 * turn + 1]
        shares = logits_of(weights, new, seen)[:, :, -1].softmax(-1)
        below = (shares.cumsum(-1) <= draws[..., turn, None]).sum(-1)
        keys = ids[..., 2 * turn + 1] = below.clamp(max=shares.shape[-1] - 1)
        wanted = RIGHT[signs[..., turn]]
        played[..., turn] = goes_on
        right[..., turn] = (keys == wanted).float()
        chance[..., turn] = shares.gather(2, wanted[..., None])[..., 0]
        if ends_when_wrong:
            goes_on = goes_on * right[..., turn]
    return ids, played, right, chance


def rewards_of(game, right, played, noise):
    """One for each turn that was played, else 0."""
    earned = right.cumprod(-1) if game.kind == "chain" else right
    rewards = (earned + game.noise * noise) / game.turns * played
    if game.kind == "delayed":
        rewards = torch.cat([torch.zeros_like(rewards[..., 1:]), rewards.sum(-1, keepdim=True)], -1)
    return rewards


def advantages_of(arm, rewards, played, generators):
    """Those of the arm's estimator, `[run, row, turn]`; 0 at turns that were not played."""
    lengths = played.sum(-1).long().flatten().tolist()
    rows = [row[:count] for row, count in zip(rewards.flatten(0, 1).tolist(), lengths, strict=True)]
    groups = [row // SIBLINGS for row in range(len(rows))]
    made = turn_advantages(rows, groups, estimator=arm.estimator, **dict(arm.params))
    advantages = torch.zeros(rewards.shape)
    advantages[played.bool()] = torch.tensor([value for row in made for value in row])
    if arm.permuted:
        for run, generator in zip(range(len(advantages)), generators, strict=True):
            values = advantages[run][played[run].bool()]
            advantages[run][played[run].bool()] = values[torch.randperm(len(values), generator=generator)]
    return advantages


class Runs:
    """Runs that learn one game side by side."""

    def __init__(self, game, runs):
        self.game, self.runs, self.steps = game, list(runs), 0
        seeds = tuple(sorted({run.seed for run in self.runs}))
        start, index = (
            imitated(game.turns, game.skill, game.lessons, seeds),
            [seeds.index(run.seed) for run in self.runs],
        )
        weights = {name: value[index].clone().requires_grad_() for name, value in start.items()}
        self.adam = Adam(weights, torch.tensor([run.rate for run in self.runs]))
        self.generators = [torch.Generator().manual_seed(run.seed) for run in self.runs]
        fixed, shape = torch.Generator().manual_seed(7), (1, POSITIONS // game.turns, game.turns)
        self._signs, self._draws = (
            torch.randint(SIGNS, shape, generator=fixed),
            torch.rand(shape, generator=fixed),
        )

    def chances(self):
        """P(right key) of each run, the mean over fixed signs at which its own keys came before."""
        rows = (len(self.runs), -1, -1)
        signs, draws = self._signs.expand(rows), self._draws.expand(rows)
        return play(self.adam.weights, signs, draws, ends_when_wrong=False)[3].mean((1, 2)).tolist()

    def step(self):
        """Rollouts, their credit, and one step up Σ A log π."""
        game, rollouts = self.game, self.game.groups * SIBLINGS
        shape = (rollouts, game.turns)
        drawn = [
            (
                torch.randint(SIGNS, (game.groups, game.turns), generator=each),
                torch.rand(shape, generator=each),
                torch.randn(shape, generator=each),
            )
            for each in self.generators
        ]
        signs, draws, noise = (torch.stack(each) for each in zip(*drawn, strict=True))
        signs = signs.repeat_interleave(SIBLINGS, 1)
        ids, played, right, _ = play(self.adam.weights, signs, draws, ends_when_wrong=game.kind == "stop")
        rewards, advantages = rewards_of(game, right, played, noise), torch.zeros(signs.shape)
        for name in {run.arm for run in self.runs}:
            own = [index for index, run in enumerate(self.runs) if run.arm == name]
            generators = [self.generators[index] for index in own]
            advantages[own] = advantages_of(ARMS[name], rewards[own], played[own], generators)
        loss = -(advantages * _log_probs(self.adam.weights, ids)).sum() / rollouts
        self.steps += 1
        self.adam.step(loss, min(1.0, self.steps / WARM_UP))

    def keep(self, runs):
        """Go on with the runs of these indices alone."""
        self.runs = [self.runs[index] for index in runs]
        self.generators = [self.generators[index] for index in runs]
        self.adam.keep(runs)


def learn(game, runs, *, target, cap, is_over=lambda run, curves: False):
    """The curve of each run: P(right key) at every `EVERY` steps, until the target, or the cap.

    `is_over` names runs that need not go on.
    """
    curves = {run: [] for run in runs}
    side_by_side = Runs(game, runs)
    while True:
        for run, chance in zip(side_by_side.runs, side_by_side.chances(), strict=True):
            curves[run].append(chance)
        going = [
            index
            for index, run in enumerate(side_by_side.runs)
            if curves[run][-1] < target and not is_over(run, curves)
        ]
        if not going or side_by_side.steps >= cap:
            return curves
        if len(going) < len(side_by_side.runs):
            side_by_side.keep(going)
        for _ in range(EVERY):
            side_by_side.step()


def _log_probs(weights, ids):
    """Of each key, `[run, row, turn]`."""
    shares = logits_of(weights, ids[..., :-1])[:, :, 0::2].log_softmax(-1)
    return shares.gather(3, ids[..., 1::2, None])[..., 0]
