"""An agent around the Anthropic client, with a loop and a tool of its own; it knows nothing of Turnwise."""

import os
import sys

import anthropic

PRICES = {"apple": 30, "pear": 45, "plum": 12, "fig": 80, "melon": 210}
TOOL = {
    "name": "price",
    "description": "The price of one fruit in cents.",
    "input_schema": {"type": "object", "properties": {"fruit": {"type": "string"}}, "required": ["fruit"]},
}


def main(task):
    client = anthropic.Anthropic()
    messages = [{"role": "user", "content": task}]
    while True:
        with client.messages.stream(
            model=os.environ["TURNWISE_MODEL"], max_tokens=512, tools=[TOOL], messages=messages
        ) as stream:
            reply = stream.get_final_message()
        messages.append({"role": "assistant", "content": reply.content})
        results = [answer(block) for block in reply.content if block.type == "tool_use"]
        if not results:
            return
        messages.append({"role": "user", "content": results})


def answer(block):
    price = PRICES.get(block.input.get("fruit"))
    content = "there is no such fruit" if price is None else str(price)
    return {"type": "tool_result", "tool_use_id": block.id, "content": content, "is_error": price is None}


if __name__ == "__main__":
    main(sys.argv[-1])
