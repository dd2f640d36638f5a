"""Writing in drafts: a judge scores each one, and the world asks for a better one."""

from common import REVISE, REVISIONS, TOPICS, judge_prompt

from turnwise import AgentEnv, TurnLevelRewardMixin


class Drafts(TurnLevelRewardMixin, AgentEnv):
    name = "drafts"
    sandbox = "none"

    def load_items(self):
        return TOPICS

    def format_prompt(self, item):
        return f"Describe {item['topic']} in two sentences."

    def respond(self, item, turn, ctx):
        return REVISE if turn.index < REVISIONS else None

    async def score_turn(self, item, turn, ctx):
        return await ctx.judge(judge_prompt(item["topic"], turn.message.content), turn=turn)
