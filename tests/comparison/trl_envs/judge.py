"""Writing in drafts: a draft is handed in with a tool, for the rollout ends at a message without a call."""

import json
import os

from common import REVISE, REVISIONS, TOPICS, judge_prompt
from datasets import Dataset
from openai import OpenAI

CLIENT = OpenAI(base_url=os.environ["SECOND_MODEL_URL"], api_key="none")


class Drafts:
    def reset(self, topic, **kwargs):
        self.topic, self.scores = topic, []

    def hand_in(self, draft: str) -> str:
        """Hand a draft in.

        Args:
            draft: The text.

        Returns:
            What is wanted next.
        """
        if len(self.scores) > REVISIONS:
            return "That was the last one; answer without calling a tool."
        question = [{"role": "user", "content": judge_prompt(self.topic, draft)}]
        answer = CLIENT.chat.completions.create(model="judge", messages=question)
        self.scores.append(float(json.loads(answer.choices[0].message.content)["score"]))
        return REVISE

    def get_reward(self) -> float:
        return sum(self.scores)


DATASET = Dataset.from_list(
    [
        {
            "prompt": [
                {
                    "role": "user",
                    "content": f"Describe {topic['topic']} in two sentences, and hand it in with the tool.",
                }
            ],
            **topic,
        }
        for topic in TOPICS
    ]
)
TRAINER = {"train_dataset": DATASET, "environment_factory": Drafts}
