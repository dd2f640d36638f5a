"""How a case of each file of golden vectors becomes groups, and what of ours is compared with it."""

import math
from collections import defaultdict
from dataclasses import replace

from environments.credit import credited_batch, describe, estimate
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Rewards

# --- groups from cases ---------------------------------------------------------------------------------


def groups(case):
    """The case's trajectories by group, in order: [(positions in the case, trajectories)]."""
    by_group = defaultdict(list)
    for position, trajectory in enumerate(case["inputs"]["trajectories"]):
        by_group[trajectory["group_id"]].append((position, trajectory))
    return [tuple(zip(*members, strict=True)) for members in by_group.values()]


def scalar_group(scores, counts):
    return group_of(None, outcomes=scores, lengths=[[1] * count for count in counts])


def tokens(trajectories):
    return [[turn["token_span"][1] - turn["token_span"][0] for turn in t["turns"]] for t in trajectories]


def outcomes_only(trajectories):
    return group_of(None, outcomes=[t["outcome_reward"] for t in trajectories], lengths=tokens(trajectories))


def step_rewards(trajectories):
    return [[turn.get("reward") for turn in t["turns"]] for t in trajectories]


def turns_only(trajectories):
    return group_of(step_rewards(trajectories))


def turns_and_outcomes(trajectories):
    outcomes = [t["outcome_reward"] for t in trajectories]
    return group_of(step_rewards(trajectories), outcomes=outcomes, lengths=tokens(trajectories))


def scored(trajectories):
    """By turn rewards, where the case has any; with a critic's values, where it has any."""
    has_rewards = all("reward" in turn for t in trajectories for turn in t["turns"])
    group = (turns_and_outcomes if has_rewards else outcomes_only)(trajectories)
    valued = [
        replace(
            got,
            turns=tuple(
                replace(turn, value=own.get("value"))
                for turn, own in zip(got.turns, given["turns"], strict=True)
            ),
        )
        for got, given in zip(group.trajectories, trajectories, strict=True)
    ]
    return replace(group, trajectories=tuple(valued))


def anchored(trajectories):
    """Step rewards and anchor states; the score is the episode reward that the reference got beside them."""
    states = [[turn["anchor_state"] for turn in t["turns"]] for t in trajectories]
    group = group_of(step_rewards(trajectories), anchors=states)
    scored = [
        replace(got, rewards=Rewards(turns=got.rewards.turns, score=given["outcome_reward"]))
        for got, given in zip(group.trajectories, trajectories, strict=True)
    ]
    return replace(group, trajectories=tuple(scored))


def two_segments(trajectories):
    """The turn reward on the first turn; the first tool answer without an error where the case says."""
    group = group_of(
        [[t["turn_reward"], *[None] * (len(t["turns"]) - 1)] for t in trajectories],
        outcomes=[t["outcome_reward"] for t in trajectories],
    )
    called = [
        replace(got, turns=tuple(_answers(turn, given["first_result_after_turn"]) for turn in got.turns))
        for got, given in zip(group.trajectories, trajectories, strict=True)
    ]
    return replace(group, trajectories=tuple(called))


def _answers(turn, first_result):
    ok = first_result is not None and turn.index >= first_result
    results = tuple(replace(r, error=None if ok else "tool_error") for r in turn.tool_results)
    return replace(turn, tool_results=results)


def condensed(trajectories):
    def reward(t):
        if not (t["correct"] and t["format_ok"]):
            return 0.0
        return 1 / max(1, *(turn["context_tokens"] for turn in t["turns"]))

    return scalar_group([reward(t) for t in trajectories], [len(t["turns"]) for t in trajectories])


# --- what covers which file ------------------------------------------------------------------------------


def per_group(case, name, build, **params):
    """The estimator on each group of the case, put back in the case's order."""
    rows = {}
    for positions, trajectories in groups(case):
        rows |= dict(zip(positions, estimate(name, build(trajectories), **params), strict=True))
    return [rows[position] for position in range(len(rows))]


def per_step(case, name, build, *, preset=None, **params):
    """The estimator on all groups of the case, which are those of one step, in the case's order."""
    found = groups(case)
    step = credit_step([build(trajectories) for _, trajectories in found], name, preset=preset, **params)
    rows = {}
    for (positions, _), advantages in zip(found, step, strict=True):
        rows |= dict(zip(positions, advantages, strict=True))
    return [rows[position] for position in range(len(rows))]


def credit_step(step, name, *, preset=None, **params):
    bare = [CreditedGroup(group=group, advantages=(), policy="", estimator="") for group in step]
    done = credited_batch(bare, name, preset=preset, params=params)
    assert all(each.status != "failed" for each in done), [each.reason for each in done]
    return [each.advantages for each in done]


def our_own(case):
    if describe(case["estimator"]).over_step or case["estimator"] in ("opo", "passk"):
        return {"per_turn_advantages": per_step(case, case["estimator"], scored, **case["params"])}
    turns = [turn for t in case["inputs"]["trajectories"] for turn in t["turns"]]
    params = dict(case["params"])
    if any("value" in turn for turn in turns):
        params["values"] = [[turn["value"] for turn in t["turns"]] for t in case["inputs"]["trajectories"]]
    return {"per_turn_advantages": per_group(case, case["estimator"], _own_group, **params)}


def _own_group(trajectories):
    states = [[turn.get("anchor_state") for turn in t["turns"]] for t in trajectories]
    outcomes = [t["outcome_reward"] for t in trajectories]
    return group_of(step_rewards(trajectories), outcomes=outcomes, anchors=states)


def return_to_go(case):
    got = per_group(case, "turn_return", turns_only, baseline="none", gamma=case["params"]["gamma"])
    return {"per_turn_returns": got}


def verl_grpo(case):
    params = case["params"]
    got = per_group(
        case,
        "grpo",
        outcomes_only,
        preset="verl",
        norm_by_std=params.get("norm_adv_by_std_in_grpo", True),
        eps=params.get("epsilon", 1e-6),
    )
    return {"per_turn_advantages": got, "cross_check.grpo_vectorized": got}


def verl_rloo(case):
    return {
        "per_turn_advantages": per_group(case, "rloo", outcomes_only, preset="verl"),
        "cross_check.rloo_vectorized": per_group(case, "rloo", outcomes_only),
    }


def gigpo(case):
    params = case["params"]

    def run(stats, weight):
        return per_group(
            case,
            "gigpo",
            anchored,
            gamma=params["gamma"],
            step_weight=weight,
            mode=params.get("mode", "mean_norm"),
            eps=params.get("epsilon", 1e-6),
            episode_stats=stats,
            singleton="raw",
        )

    stats = "rows" if params.get("compute_mean_std_cross_steps", True) else "trajectory"
    whole, episode = run(stats, params.get("step_advantage_w", 1.0)), run(stats, 0.0)
    full = run(stats, 1.0)
    got = {
        "per_turn_advantages": whole,
        "per_turn_episode_advantage": episode,
        "per_turn_step_advantage": [
            [a - b for a, b in zip(*rows, strict=True)] for rows in zip(full, episode, strict=True)
        ],
        "per_turn_step_returns": per_group(
            case, "turn_return", turns_only, baseline="none", gamma=params["gamma"]
        ),
    }
    if all(len(positions) > 1 for positions, _ in groups(case)):
        got["per_turn_episode_advantage_if_stats_per_trajectory"] = run("trajectory", 0.0)
    return got


def mt_grpo(case):
    params = case["params"]
    got = per_group(
        case,
        "mt_grpo",
        two_segments,
        turn_coef=params.get("turn_advantage_coef", 1.0),
        eps=params.get("eps", 1e-4),
    )
    return {"per_turn_advantages": got}


def process_supervision(case):
    gamma = case["params"].get("gamma")
    gamma = 1.0 if gamma is None else gamma
    got = per_group(case, "process_supervision", turns_only, gamma=gamma, singleton="raw")
    return {"per_turn_advantages": got}


def rllm(case):
    name, params = case["params"]["estimator"], case["params"]
    if name == "grpo":
        got = per_group(
            case,
            "grpo",
            outcomes_only,
            preset="rllm",
            norm_by_std=params.get("norm_adv_by_std_in_grpo", True),
            eps=params.get("epsilon", 1e-6),
        )
    elif name == "rloo":
        got = per_group(case, "rloo", outcomes_only, preset="rllm")
    elif name == "reinforce":
        got = per_group(case, "turn_return", outcomes_only, baseline="none")
    elif name == "reinforce_plus_plus_baseline":
        got = per_step(case, "reinforce_pp_baseline", outcomes_only, preset="rllm")
    else:
        assert name == "prpo"
        got = per_step(case, "reinforce_pp", outcomes_only, preset="rllm")
    return {"per_turn_advantages": got}


def tinker(case):
    return {"per_turn_advantages": per_group(case, "grpo", turns_and_outcomes, preset="tinker")}


def torchtitan(case):
    params = case["params"]
    got = per_group(
        case,
        "grpo",
        outcomes_only,
        preset="torchtitan",
        norm_by_std=params.get("should_std_normalize", False),
        eps=params.get("epsilon", 1e-6),
    )
    return {"per_turn_advantages": got}


def trl(case):
    """Each reward function is a part of the score; NaN is a part not given, all NaN a dropped sibling."""
    params, inputs = case["params"], case["inputs"]
    if params.get("multi_objective_aggregation") == "normalize_then_sum":
        return {"per_turn_advantages": trl_apart(params, inputs)}
    weights = params.get("reward_weights") or [1.0] * len(inputs["rewards_per_func"][0])
    siblings = defaultdict(dict)
    for position, (row, group) in enumerate(
        zip(inputs["rewards_per_func"], inputs["group_ids"], strict=True)
    ):
        parts = [w * r for w, r in zip(weights, row, strict=True) if r is not None and r != "NaN"]
        if parts:
            siblings[group][position] = math.fsum(parts)
    got = [[0.0] for _ in inputs["group_ids"]]
    if params.get("scale_rewards", "group") == "batch":
        step = [scalar_group(list(scores.values()), [1] * len(scores)) for scores in siblings.values()]
        for scores, rows in zip(
            siblings.values(), credit_step(step, "grpo_batch", preset="trl"), strict=True
        ):
            for position, row in zip(scores, rows, strict=True):
                got[position] = row
        return {"per_turn_advantages": got}
    for scores in siblings.values():
        group = scalar_group(list(scores.values()), [1] * len(scores))
        norm = params.get("scale_rewards", "group") == "group"
        rows = estimate("grpo", group, preset="trl", norm_by_std=norm, eps=params.get("eps", 1e-4))
        for position, row in zip(scores, rows, strict=True):
            got[position] = row
    return {"per_turn_advantages": got}


def trl_apart(params, inputs):
    """The last reward function is the outcome, one before it the sum of turn rewards."""
    weights = params.get("reward_weights") or [1.0, 1.0]
    siblings = defaultdict(dict)
    for position, (row, group) in enumerate(
        zip(inputs["rewards_per_func"], inputs["group_ids"], strict=True)
    ):
        parts = [None if value in (None, "NaN") else value for value in row]
        if any(value is not None for value in parts):
            siblings[group][position] = parts
    step = [group_in_parts(list(members.values())) for members in siblings.values()]
    params = {"turn_weight": weights[0], "outcome_weight": weights[-1], "group_eps": params.get("eps", 1e-4)}
    got = [[0.0] for _ in inputs["group_ids"]]
    for members, rows in zip(
        siblings.values(), credit_step(step, "gdpo", preset="trl", **params), strict=True
    ):
        for position, row in zip(members, rows, strict=True):
            got[position] = row
    return got


def group_in_parts(rows):
    """A missing outcome leaves out its part, not its sibling."""
    group = group_of(
        [[row[0] if len(row) > 1 else None] for row in rows], outcomes=[row[-1] or 0.0 for row in rows]
    )
    parts = [{} if row[-1] is None else {"outcome": row[-1]} for row in rows]
    named = [
        replace(each, rewards=replace(each.rewards, outcome_components=part or {"other": 0.0}))
        for each, part in zip(group.trajectories, parts, strict=True)
    ]
    return replace(group, trajectories=tuple(named))


def gdpo(case):
    params = case["params"]
    turns, outcomes = params.get("gdpo_reward_weights") or (1.0, 1.0)
    got = per_step(
        case,
        "gdpo",
        turns_and_outcomes,
        preset="verl",
        turn_weight=turns,
        outcome_weight=outcomes,
        group_eps=params.get("epsilon", 1e-6),
    )
    return {"per_turn_advantages": got}


def hgpo(case):
    params = case["params"]
    got = per_group(
        case,
        "hgpo",
        anchored,
        preset="verl",
        gamma=params["gamma"],
        history_length=params["history_length"],
        mode=params["mode"],
        length_weight=params["length_weight_alpha"],
        base_group=params["base_group"],
    )
    return {"per_turn_advantages": got}


def igpo(case):
    """A reward of exactly 0 ends no step in the reference, as a turn that is not scored."""

    def gains(trajectories):
        rewards = [[turn["reward"] or None for turn in t["turns"]] for t in trajectories]
        return group_of(rewards, outcomes=[t["outcome_reward"] for t in trajectories])

    params = case["params"]
    streams, gamma = params["info_gain_norm_mode"], params["gamma"]
    got = per_group(case, "igpo", gains, preset="verl", gamma=gamma, streams=streams, eps=params["epsilon"])
    return {"per_turn_advantages": got}


def rllm_per_step(case):
    params = case["params"]
    got = per_group(
        case,
        "rllm_per_step",
        turns_only,
        preset="rllm",
        gamma=params["gamma"],
        norm_by_std=params["norm_adv_by_std_in_grpo"],
        eps=params["epsilon"],
    )
    return {"per_turn_advantages": got}


def tree_grpo(case):
    def trees(trajectories):
        group = outcomes_only(trajectories)
        rooted = [
            replace(got, turns=tuple(replace(turn, anchor=given["tree_id"]) for turn in got.turns))
            for got, given in zip(group.trajectories, trajectories, strict=True)
        ]
        return replace(group, trajectories=tuple(rooted))

    got = per_group(case, "tree_grpo", trees, preset="verl", eps=case["params"]["epsilon"])
    return {"per_turn_advantages": got}


def in_verl(name):
    """A batch estimator of verl, whose discount is per token, so that only a discount of 1 is ours."""

    def cover(case):
        params = case["params"]
        assert params.get("gamma", 1.0) == params.get("f_norm", 1.0) == 1.0
        norm = {"norm_by_std": "norm_adv_by_std_in_grpo", "eps": "epsilon"} if name == "passk" else {}
        given = {ours: params[theirs] for ours, theirs in norm.items() if theirs in params}
        return {"per_turn_advantages": per_step(case, name, scored, preset="verl", **given)}

    return cover


def with_preset(preset):
    """Plain GRPO or RLOO, by the constants of that trainer."""

    def cover(case):
        params = case["params"]
        if params.get("estimator", params.get("advantage_estimator")) == "rloo":
            return {"per_turn_advantages": per_group(case, "rloo", outcomes_only, preset=preset)}
        names = ("norm_adv_by_std_in_grpo", "grpo_norm_by_std")
        given = [{"norm_by_std": params[name]} for name in names if name in params]
        got = per_group(case, "grpo", outcomes_only, preset=preset, **(given or [{}])[0])
        return {"per_turn_advantages": got}

    return cover


def verl_agent_rows(case):
    params = case["params"]
    if not params.get("compute_mean_std_cross_steps", True):
        return with_preset("verl")(case)
    mode = "mean_std_norm" if params.get("norm_adv_by_std_in_grpo", True) else "mean_norm"
    got = per_group(case, "gigpo", outcomes_only, preset="verl_agent_rows", mode=mode)
    return {"per_turn_advantages": got}


def turn_gae(case):
    params = case["params"]
    if params.get("whiten", False):
        of_gae = {name: params[name] for name in ("gamma", "lam")}
        return {"per_turn_advantages": per_step(case, "reinforce_pp", scored, preset="verl", **of_gae)}
    rows = {}
    for positions, trajectories in groups(case):
        values = None
        if params.get("critic", False):
            values = [[turn["value"] for turn in t["turns"]] for t in trajectories]
        got = estimate(
            "turn_gae",
            turns_and_outcomes(trajectories),
            gamma=params["gamma"],
            lam=params["lam"],
            values=values,
        )
        rows |= dict(zip(positions, got, strict=True))
    return {"per_turn_advantages": [rows[position] for position in range(len(rows))]}


def condensation(case):
    params = case["params"]
    got = per_group(
        case,
        "grpo_multiturn",
        condensed,
        preset="verl",
        norm_by_std=params.get("norm_adv_by_std_in_grpo", True),
        eps=params.get("epsilon", 1e-6),
    )
    return {"per_turn_advantages": got}


COVERED = {
    "art_group": with_preset("art"),
    "discounted_return_to_go": return_to_go,
    "dr_grpo_outcome": verl_grpo,
    "gdpo": gdpo,
    "gigpo_mean_norm": gigpo,
    "gigpo_mean_std_norm": gigpo,
    "gpg_outcome": in_verl("gpg"),
    "grpo_multiturn_condensation": condensation,
    "grpo_outcome": verl_grpo,
    "grpo_passk": in_verl("passk"),
    "grpo_process_supervision": process_supervision,
    "grpo_step_rows_verl_agent": verl_agent_rows,
    "hgpo": hgpo,
    "igpo_turn": igpo,
    "mt_grpo": mt_grpo,
    "opo_outcome": in_verl("opo"),
    "reinforce_plus_plus": in_verl("reinforce_pp"),
    "reinforce_plus_plus_baseline": in_verl("reinforce_pp_baseline"),
    "rllm_broadcast": rllm,
    "rllm_per_step": rllm_per_step,
    "rloo_outcome": verl_rloo,
    "skyrl_stepwise": with_preset("skyrl"),
    "tinker_centering": tinker,
    "torchtitan_group": torchtitan,
    "tree_grpo": tree_grpo,
    "trl_grpo_scale_rewards": trl,
    "turn_gae": turn_gae,
    "verifiers_center_broadcast": with_preset("verifiers"),
}
"""How each file of the references' vectors is computed here, also of those that are not in this folder."""
