"""The credit of each kind of message in `sales_chat`, over many groups of the scripted seller.

python -m tests.benchmarks.chat_credit [--epochs 40] [--group-size 8] [--estimator turn_return]
"""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from environments.config import AgentEnvConfig
from environments.shipped.sales_chat import SalesChatEnv
from environments.shipped.sales_chat.env import PRODUCTS, parse_move
from environments.trajectory import CreditedGroup

SKILLS = (0.0, 0.3, 0.6, 1.0)
KINDS = ("on topic", "off topic", "pitch", "goodbye")


async def played(*, epochs: int, **settings: object) -> list[CreditedGroup]:
    """Every product `epochs` times."""
    async with SalesChatEnv(AgentEnvConfig(total_steps=epochs * len(PRODUCTS), **settings)) as env:
        return [await env.run_group(task) for task in env.tasks()]


def credit_by_kind(groups: Sequence[CreditedGroup]) -> Mapping[tuple[int, str], Sequence[float]]:
    """The advantages of all turns by (turn, kind of its message)."""
    found = defaultdict[tuple[int, str], list[float]](list)
    for index, kind, advantage in _turns(groups):
        found[index, kind].append(advantage)
    return found


def _turns(groups: Sequence[CreditedGroup]) -> Iterator[tuple[int, str, float]]:
    for credited in groups:
        for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
            taste = parse_move(trajectory.prompt[-1].content).topic
            for turn, advantage in zip(trajectory.turns, advantages, strict=True):
                move = parse_move(turn.message.content)
                chat = "on topic" if move.topic == taste else "off topic"
                yield turn.index, chat if move.kind == "chat" else move.kind, advantage


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--estimator", default="turn_return")
    options = parser.parse_args()
    settings = {"group_size": options.group_size, "estimator": options.estimator}
    print("| skill | score | sold | turn | " + " | ".join(KINDS) + " |")
    print("|---|---|---|---|" + "---|" * len(KINDS))
    for skill in SKILLS:
        groups = asyncio.run(played(epochs=options.epochs, scripted_skill=skill, **settings))
        trajectories = [trajectory for credited in groups for trajectory in credited.group.trajectories]
        score = fmean(trajectory.score for trajectory in trajectories)
        sold = fmean(trajectory.end_reason == "sold" for trajectory in trajectories)
        credit = credit_by_kind(groups)
        for index in range(3):
            cells = [
                f"{fmean(credit[index, kind]):+.3f}" if credit.get((index, kind)) else "" for kind in KINDS
            ]
            print(f"| {skill:g} | {score:.3f} | {sold:.3f} | {index + 1} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
