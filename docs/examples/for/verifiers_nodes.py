"""verifiers and prime-rl: `advantages` on the nodes of traces, which prime-rl reads. For verifiers 0.4.

prime-rl is on no index; its `trace_to_samples` reads `branch.advantages`, printed here for each sampled token.
"""

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, TraceTask, WireTrace

from environments.trainers.verifiers_credit import stamp_advantages

STEP_REWARDS = [[1.0, 0.0], [1.0, 1.0, 1.0], [0.0], [0.0, 1.0]]


def rollout(rewards):
    """Return a trace as a rollout leaves it, with a reward for each of its turns."""
    trace = WireTrace(
        task=TraceTask(type="t", data=WireTaskData()), agent=AgentInfo(config=WireAgentConfig()), ok=True
    )
    for role in ("user", "assistant") * len(rewards):
        sampled = role == "assistant"
        node = MessageNode(
            parent=len(trace.nodes) - 1 if trace.nodes else None, message={"role": role, "content": "said"},
            sampled=sampled, token_ids=[7], mask=[sampled], logprobs=[-1.0] if sampled else [],
        )  # fmt: skip
        trace.nodes.append(node)
    trace.info["turn_rewards"] = rewards
    return trace


def advantages(**params):
    group = [rollout(rewards) for rewards in STEP_REWARDS]
    stamp_advantages(group, **params)
    return [[round(each, 3) for each in trace.branches[0].advantages[1::2]] for trace in group]


if __name__ == "__main__":
    print("turn_return", advantages())
    print("gamma 0    ", advantages(gamma=0.0))
