"""What the versions of one environment share: data, rules of the game, wording. It is not counted."""

PROBLEMS = [
    {"id": f"{a}x{b}+{c}", "question": f"What is {a} * {b} + {c}?", "answer": str(a * b + c)}
    for a, b, c in [(12, 7, 5), (31, 4, 9), (8, 15, 2), (23, 6, 11), (17, 9, 3), (14, 13, 8)]
]

WORDS = ["crane", "plant", "river", "stone", "grape", "light", "mouse", "bread"]
GUESSES = 4
WORD_RULES = (
    f"Find the word of five letters in {GUESSES} guesses. Each is answered with a mark for every letter: "
    "g in place, y elsewhere, - not in it."
)

ORDERS = {"17": "pending", "18": "shipped", "19": "pending"}
SHOP_POLICY = (
    "You serve a shop's customers. Look orders up; cancel one only when it is pending and they ask for it."
)
SCENARIOS = [
    {"id": "cancel", "persona": "You want to cancel order 17.", "cancelled": ["17"]},
    {"id": "shipped", "persona": "You want to cancel order 18. You accept a no.", "cancelled": []},
    {
        "id": "which",
        "persona": "You want to cancel the pending one of orders 18 and 19.",
        "cancelled": ["19"],
    },
]

TOPICS = [{"id": topic, "topic": topic} for topic in ("a rain jacket", "a bread knife", "a desk lamp")]
REVISIONS = 2
REVISE = "Make it better."


def marks(guess: str, answer: str) -> str:
    """`g` in place, `y` elsewhere, `-` not there, each letter as often as the answer has it."""
    left = [right for letter, right in zip(guess, answer, strict=True) if letter != right]
    shown = ""
    for letter, right in zip(guess, answer, strict=True):
        if letter != right and letter in left:
            left.remove(letter)
            shown += "y"
        else:
            shown += "g" if letter == right else "-"
    return shown


def is_guess(text: str) -> bool:
    return len(text) == 5 and text.isascii() and text.isalpha()


def look_up(orders: dict[str, str], order_id: str) -> str:
    return orders.get(order_id, "no such order")


def cancel(orders: dict[str, str], order_id: str) -> str:
    if orders.get(order_id) != "pending":
        return "only a pending order can be cancelled"
    orders[order_id] = "cancelled"
    return "cancelled"


def cancelled(orders: dict[str, str]) -> list[str]:
    return [order_id for order_id, status in orders.items() if status == "cancelled"]


def judge_prompt(topic: str, text: str) -> str:
    return (
        f"Score this description of {topic} for clarity, from 0 to 1. Answer with JSON alone, like "
        f'{{"score": 0.5}}.\n\n<text>\n{text}\n</text>'
    )
