"""What an agent is offered: the items, the prompt and the tools, as a model sees them."""

import json
from typing import Any

from environments.data.item_ids import ID_FIELDS
from environments.data.item_json import recorded_item
from environments.env_checks.checked_env import CheckedEnv
from environments.env_checks.finding import Answer, Report
from environments.trajectory import Trajectory
from tools.calls import ToolSpec

_LONG_PROMPT = 0.5
"""Share of a row that a prompt may take before it is worth a word."""


async def check_items(checked: CheckedEnv) -> Answer:
    """Ids are unique, or the environment would not have opened; a record holds what has a form in JSON."""
    env = checked.env
    unrecordable = [
        name for item, name in zip(env.items, env.item_ids, strict=True) if recorded_item(item) is None
    ]
    unnamed = sum(
        not (isinstance(item, dict) and any(item.get(name) is not None for name in ID_FIELDS))  # pyright: ignore[reportUnknownMemberType]  # items are anything
        for item in env.items
    )
    count = f"{len(env.items)} items, ids differ"
    if unrecordable:
        return "warn", (
            f"{count}; {len(unrecordable)} hold what JSON has no form for ({unrecordable[0]}), so that the "
            f"record leaves them out, and `rescore` takes them from the environment"
        )
    if unnamed:
        return "ok", f"{count}; {unnamed} have no {' or '.join(ID_FIELDS)}, and are named by their content"
    return "ok", count


async def check_prompts(checked: CheckedEnv) -> Answer:
    """Each item has a prompt that leaves room for an answer."""
    openings = {each.item_id: each for each in reversed(checked.trajectories)}
    if not openings:
        return "skipped", "no rollout came to an end"
    tokens = {
        name: len(checked.env.renderer.prompt_ids(each.prompt, each.tools)) for name, each in openings.items()
    }
    longest = max(tokens, key=lambda name: tokens[name])
    texts = {"\n".join(message.content for message in each.prompt) for each in openings.values()}
    fewest, most = min(tokens.values()), tokens[longest]
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    found = f"{count} tokens, tools included"
    if not all(text.strip() for text in texts):
        return "fail", "a prompt is empty: the model is asked nothing"
    if tokens[longest] > _LONG_PROMPT * checked.config.max_token_length:
        return "warn", f"{found}; that of {longest} takes more than half of --env.max_token_length"
    if len(texts) == 1 < len(openings):
        found += "; the same for every item, so that only the world can tell items apart"
    return "ok", found


async def check_tools(checked: CheckedEnv) -> Answer:
    """A model knows a tool by its description and those of its parameters."""
    specs = checked.env.toolset.specs
    if not specs:
        return "skipped", "no tools: the agent only writes"
    bare = [spec.name for spec in specs if not spec.description.strip()]
    undescribed = [f"{spec.name}.{name}" for spec in specs for name in _undescribed(spec)]
    names = ", ".join(spec.name for spec in specs)
    if bare or undescribed:
        return "warn", (
            f"{names}; no description of {', '.join(bare + undescribed)}: the docstring is what the model "
            f"reads, with a line for each argument under `Args:`"
        )
    return "ok", names


def _undescribed(spec: ToolSpec) -> list[str]:
    properties: dict[str, Any] = spec.parameters.get("properties", {})
    return [name for name, schema in properties.items() if not schema.get("description")]


def show_offer(report: Report, trajectory: Trajectory) -> None:
    """Prompt and tools of a rollout, as its model saw them."""
    report.shown("prompt", [message.to_openai() for message in trajectory.prompt])
    report.shown("tools", [json.loads(json.dumps(spec.to_openai())) for spec in trajectory.tools])
