"""Writing in drafts: a judge scores each one, and the environment asks for a better one."""

import json
import os

import verifiers.v1 as vf
from common import REVISE, REVISIONS, TOPICS, judge_prompt

__all__ = ["DraftTaskset", "Drafts"]


class Data(vf.TaskData):
    topic: str


class DraftTask(vf.Task[Data]):
    pass


class DraftJudge(vf.Judge[float]):
    def build_messages(self, topic, text):
        return judge_prompt(topic, text)

    def parse(self, response):
        return float(json.loads(response.text)["score"])


class DraftsConfig(vf.EnvConfig):
    writer: vf.AgentConfig = vf.AgentConfig()
    judge: vf.JudgeConfig = vf.JudgeConfig(base_url=os.environ["SECOND_MODEL_URL"], model="judge")


class Drafts(vf.Env[DraftsConfig]):
    async def run(self, task, agents):
        judge, scores = DraftJudge(self.config.judge), []
        async with agents.writer.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                text, trace = segment.last_reply, interaction.trace
                verdict = await judge.evaluate(topic=task.data.topic, text=text, trace=trace)
                scores.append(verdict.parsed)
                if len(scores) > REVISIONS:
                    break
                segment = await interaction.turn(REVISE)
        interaction.trace.record_reward("drafts", sum(scores))


class DraftTaskset(vf.Taskset[DraftTask, vf.TasksetConfig]):
    def load(self):
        for topic in TOPICS:
            prompt = f"Describe {topic['topic']} in two sentences."
            yield DraftTask(Data(prompt=prompt, **topic), self.config.task)
