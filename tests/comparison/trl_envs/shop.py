"""A shop with a simulated customer, who is a tool: the rollout ends at a message without a call."""

import os

from common import ORDERS, SCENARIOS, SHOP_POLICY, cancel, cancelled, look_up
from datasets import Dataset
from openai import OpenAI

CLIENT = OpenAI(base_url=os.environ["SECOND_MODEL_URL"], api_key="none")
PERSONA = "You play a customer who writes to a shop. When you have what you want, write ###STOP###. {}"


class Shop:
    def reset(self, persona, cancelled, **kwargs):
        self.orders, self.expected = dict(ORDERS), cancelled
        self.heard = [{"role": "system", "content": PERSONA.format(persona)}]
        return self.say_to_customer("Hello! How can I help you?")

    def say_to_customer(self, text: str) -> str:
        """Say something to the customer.

        Args:
            text: What to say.

        Returns:
            What the customer answers.
        """
        self.heard.append({"role": "user", "content": text})
        answer = CLIENT.chat.completions.create(model="user", messages=self.heard)
        said = answer.choices[0].message.content
        self.heard.append({"role": "assistant", "content": said})
        if "###STOP###" in said or len(self.heard) > 20:
            return "The customer has left. Answer without calling a tool."
        return said

    def find_order(self, order_id: str) -> str:
        """Look up the status of an order.

        Args:
            order_id: Its number.

        Returns:
            The status.
        """
        return look_up(self.orders, order_id)

    def cancel_order(self, order_id: str) -> str:
        """Cancel a pending order.

        Args:
            order_id: Its number.

        Returns:
            Whether it is cancelled.
        """
        return cancel(self.orders, order_id)

    def get_reward(self) -> float:
        return float(cancelled(self.orders) == self.expected)


DATASET = Dataset.from_list(
    [
        {
            "prompt": [
                {"role": "system", "content": SHOP_POLICY + " Speak to the customer with the tool."},
                {"role": "user", "content": "A customer has written: "},
            ],
            **scenario,
        }
        for scenario in SCENARIOS
    ]
)
TRAINER = {"train_dataset": DATASET, "environment_factory": Shop}
