"""The shop, which is the state of a rollout: its database, and the tools that read and change it."""

import hashlib
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from environments.rollout.items.items import load_items
from tools.calls import State, ToolContext
from tools.errors import ToolError
from tools.registry import tool

HANDED_OVER = "transferred to a human"
_NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*")
_AMOUNT = re.compile(r"\d{1,9}(\.\d{1,4})?")
_MOST_NUMBERS = 20
"""A message with more numbers is a guess and answers nothing."""


def cents(amount: str) -> int:
    return int(Decimal(amount) * 100)


def money(amount: int) -> str:
    return f"{Decimal(amount) / 100:.2f}"


def states(message: str, amount: str) -> bool:
    """Whether a message has this number (`12`, `12.0` or `12.00`) and not too many others."""
    numbers = {number.replace(",", "") for number in _NUMBER.findall(message)}
    plain = [number for number in numbers if _AMOUNT.fullmatch(number)]
    return len(numbers) <= _MOST_NUMBERS and Decimal(amount) in map(Decimal, plain)


Shown = dict[str, Any]
Text = Annotated[str, Field(min_length=1, max_length=100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    tool: str
    user_id: str | None
    arguments: Mapping[str, Any]


class Lookup(State):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.events: list[Event] = []

    @tool
    def find_user_by_email(self, email: Text) -> Shown:
        """Find a customer by email address. Gives the user id.

        Args:
            email: The address, for example ada@example.com.
        """
        return self._find("find_user_by_email", "lower(email) = ?", email.strip().lower())

    @tool
    def find_user_by_name(self, first_name: Text, last_name: Text, zip_code: Text) -> Shown:
        """Find a customer by name and zip code. Gives the user id.

        Args:
            first_name: The first name.
            last_name: The last name.
            zip_code: The zip code of the customer's address.
        """
        by_name = "lower(first_name) = ? and lower(last_name) = ? and replace(lower(zip_code), ' ', '') = ?"
        names = (first_name.strip().lower(), last_name.strip().lower())
        return self._find("find_user_by_name", by_name, *names, zip_code.replace(" ", "").lower())

    @tool
    def get_user(self, user_id: Text) -> Shown:
        """Show a customer: name, address, methods of payment and orders.

        Args:
            user_id: The user id.
        """
        user = dict(self.row("users", "user_id", user_id))
        payments = self.connection.execute("select * from payments where user_id = ?", [user_id])
        orders = self.connection.execute("select order_id from orders where user_id = ?", [user_id])
        user["payments"] = [
            {"payment_id": p["payment_id"], "kind": p["kind"]}
            | ({"balance": money(p["balance"])} if p["kind"] == "gift card" else {})
            for p in payments
        ]
        user["orders"] = [order["order_id"] for order in orders]
        self.note("get_user", user_id, user_id=user_id)
        return user

    @tool
    def get_order(self, order_id: Text) -> Shown:
        """Show an order: its status, address, products, prices and payments.

        Args:
            order_id: The order id, for example W2001.
        """
        order = dict(self.row("orders", "order_id", order_id))
        order["products"] = [self._line(line) for line in self.lines(order_id)]
        paid = self.connection.execute("select * from transactions where order_id = ?", [order_id])
        order["transactions"] = [
            {"kind": p["kind"], "payment_id": p["payment_id"], "amount": money(p["amount"])} for p in paid
        ]
        self.note("get_order", order["user_id"], order_id=order_id)
        return {name: value for name, value in order.items() if value is not None}

    @tool
    def list_products(self) -> list[Shown]:
        """List all products of the shop with their product ids."""
        return [dict(row) for row in self.connection.execute("select * from products")]

    @tool
    def get_product(self, product_id: Text) -> Shown:
        """Show a product: all its variants, with options, price, and whether each is available.

        Args:
            product_id: The product id, for example P11.
        """
        product = self.row("products", "product_id", product_id)
        variants = self.connection.execute("select * from variants where product_id = ?", [product_id])
        shown = [self._variant(v) | {"available": bool(v["available"])} for v in variants]
        self.note("get_product", None, product_id=product_id)
        return dict(product) | {"variants": shown}

    def note(self, tool: str, user_id: str | None, /, **arguments: Any) -> None:
        self.events.append(Event(tool=tool, user_id=user_id, arguments=arguments))

    def row(self, table: str, key: str, value: str) -> sqlite3.Row:
        row = self.connection.execute(f"select * from {table} where {key} = ?", [value]).fetchone()
        if row is None:
            raise ToolError(f"There is no {key.removesuffix('_id')} {value!r}.")
        return row

    def lines(self, order_id: str) -> list[sqlite3.Row]:
        return self.connection.execute("select * from order_lines where order_id = ?", [order_id]).fetchall()

    def _find(self, tool: str, condition: str, *values: str) -> Shown:
        row = self.connection.execute(f"select user_id from users where {condition}", values).fetchone()
        if row is None:
            raise ToolError("No customer was found.")
        self.note(tool, row["user_id"])
        return {"user_id": row["user_id"]}

    def _line(self, line: sqlite3.Row) -> dict[str, Any]:
        variant = self.row("variants", "variant_id", line["variant_id"])
        product = self.row("products", "product_id", variant["product_id"])
        asked = {name: line[name] for name in ("request", "exchange_for") if line[name] is not None}
        bought = {"price": money(line["price"]), "product_id": product["product_id"], "name": product["name"]}
        return self._variant(variant) | bought | asked

    def _variant(self, variant: sqlite3.Row) -> dict[str, Any]:
        return {
            "variant_id": variant["variant_id"],
            "options": json.loads(variant["options"]),
            "price": money(variant["price"]),
        }


VariantIds = Annotated[list[Text], Field(min_length=1, max_length=20)]
_CHANGED = "pending with changed products"


class Shop(Lookup):
    """All tools of the shop. They enforce the database's rules; `conduct.py` checks the policy."""

    @tool
    def cancel_pending_order(
        self, order_id: Text, reason: Literal["no longer needed", "ordered by mistake"]
    ) -> str:
        """Cancel a pending order and refund it to the original method of payment.

        Args:
            order_id: The order id.
            reason: Why.
        """
        with self.connection:
            order = self._order(order_id, "pending")
            self._set(order_id, "status = 'cancelled', cancel_reason = ?", reason)
            total = sum(line["price"] for line in self.lines(order_id))
            self._settle(order, order["payment_id"], -total)
        self.note("cancel_pending_order", order["user_id"], order_id=order_id, reason=reason)
        return f"Order {order_id} is cancelled; {money(total)} go back to {order['payment_id']}."

    @tool
    def modify_order_address(self, order_id: Text, street: Text, city: Text, zip_code: Text) -> str:
        """Change the address that a pending order is sent to.

        Args:
            order_id: The order id.
            street: Street and house number.
            city: The city.
            zip_code: The zip code.
        """
        with self.connection:
            order = self._order(order_id, "pending", _CHANGED)
            self._set(order_id, "street = ?, city = ?, zip_code = ?", street, city, zip_code)
        address = {"street": street, "city": city, "zip_code": zip_code}
        self.note("modify_order_address", order["user_id"], order_id=order_id, **address)
        return f"Order {order_id} goes to {street}, {city}, {zip_code}."

    @tool
    def modify_user_address(self, user_id: Text, street: Text, city: Text, zip_code: Text) -> str:
        """Change a customer's own address; orders keep theirs.

        Args:
            user_id: The user id.
            street: Street and house number.
            city: The city.
            zip_code: The zip code.
        """
        with self.connection:
            self.row("users", "user_id", user_id)
            self.connection.execute(
                "update users set street = ?, city = ?, zip_code = ? where user_id = ?",
                [street, city, zip_code, user_id],
            )
        address = {"street": street, "city": city, "zip_code": zip_code}
        self.note("modify_user_address", user_id, user_id=user_id, **address)
        return f"The address of {user_id} is {street}, {city}, {zip_code}."

    @tool
    def modify_order_variants(
        self, order_id: Text, variant_ids: VariantIds, new_variant_ids: VariantIds, payment_id: Text
    ) -> str:
        """Change products of a pending order to other variants of the same products. Possible once.

        Args:
            order_id: The order id.
            variant_ids: What is in the order and leaves it.
            new_variant_ids: What comes instead, in the same order.
            payment_id: The method that pays a difference, or gets it back.
        """
        with self.connection:
            order = self._order(order_id, "pending")
            swaps, difference = self._swaps(order, variant_ids, new_variant_ids, payment_id)
            self.connection.executemany(
                "update order_lines set variant_id = ?, price = ? where order_id = ? and variant_id = ?",
                [(new, price, order_id, old) for old, new, price in swaps],
            )
            self._set(order_id, "status = ?", _CHANGED)
            self._settle(order, payment_id, difference)
        asked = {"variant_ids": variant_ids, "new_variant_ids": new_variant_ids, "payment_id": payment_id}
        self.note("modify_order_variants", order["user_id"], order_id=order_id, **asked)
        return f"Order {order_id} is changed; the difference is {money(difference)}."

    @tool
    def return_order_variants(self, order_id: Text, variant_ids: VariantIds, payment_id: Text) -> str:
        """Take products of a delivered order back. Possible once, and not after an exchange.

        Args:
            order_id: The order id.
            variant_ids: What the customer sends back.
            payment_id: The original method of payment, or a gift card of the customer's.
        """
        with self.connection:
            order = self._order(order_id, "delivered")
            returned = self._find_lines(order_id, variant_ids)
            payment = self._payment(order, payment_id)
            if payment_id != order["payment_id"] and payment["kind"] != "gift card":
                raise ToolError(f"A refund goes to {order['payment_id']} or to a gift card.")
            self._request(order_id, [(line["variant_id"], None) for line in returned], "return")
            self._set(order_id, "status = 'return requested'")
            refund = sum(line["price"] for line in returned)
            self._book(order, payment_id, "refund on arrival", refund)
        asked = {"variant_ids": variant_ids, "payment_id": payment_id}
        self.note("return_order_variants", order["user_id"], order_id=order_id, **asked)
        return f"The return of {len(returned)} products is requested; {money(refund)} go to {payment_id}."

    @tool
    def exchange_order_variants(
        self, order_id: Text, variant_ids: VariantIds, new_variant_ids: VariantIds, payment_id: Text
    ) -> str:
        """Exchange products of a delivered order for other variants of the same products. Possible once.

        Args:
            order_id: The order id.
            variant_ids: What the customer sends back.
            new_variant_ids: What the customer gets instead, in the same order.
            payment_id: The method that pays a difference, or gets it back.
        """
        with self.connection:
            order = self._order(order_id, "delivered")
            swaps, difference = self._swaps(order, variant_ids, new_variant_ids, payment_id)
            self._request(order_id, [(old, new) for old, new, _ in swaps], "exchange")
            self._set(order_id, "status = 'exchange requested'")
            self._book(order, payment_id, "difference on arrival", difference)
        asked = {"variant_ids": variant_ids, "new_variant_ids": new_variant_ids, "payment_id": payment_id}
        self.note("exchange_order_variants", order["user_id"], order_id=order_id, **asked)
        return f"The exchange is requested; the difference is {money(difference)}."

    @tool
    def transfer_to_human(self, ctx: ToolContext, summary: Annotated[str, Field(max_length=2000)]) -> str:
        """Hand the conversation over to a human colleague. It ends your work.

        Args:
            summary: What the customer wants and what was done.
        """
        self.hand_over()
        ctx.end(HANDED_OVER)
        return "A colleague takes over."

    def hand_over(self) -> None:
        with self.connection:
            self.connection.execute("insert into transfers values (1)")
        self.note("transfer_to_human", None)

    def _order(self, order_id: str, *allowed: str) -> sqlite3.Row:
        order = self.row("orders", "order_id", order_id)
        if order["status"] not in allowed:
            raise ToolError(f"Order {order_id} is {order['status']}, not {allowed[0]}.")
        return order

    def _find_lines(self, order_id: str, variant_ids: Sequence[str]) -> list[sqlite3.Row]:
        lines = {line["variant_id"]: line for line in self.lines(order_id)}
        if missing := sorted(set(variant_ids) - set(lines)):
            raise ToolError(f"Order {order_id} has no {', '.join(missing)}.")
        if len(set(variant_ids)) < len(variant_ids):
            raise ToolError("A variant is named twice.")
        return [lines[variant_id] for variant_id in variant_ids]

    def _swaps(
        self, order: sqlite3.Row, old: Sequence[str], new: Sequence[str], payment_id: str
    ) -> tuple[list[tuple[str, str, int]], int]:
        """Return (old variant, new variant, new price) of each line, and the difference to pay."""
        order_id = order["order_id"]
        lines = self._find_lines(order_id, old)
        if len(old) != len(new):
            raise ToolError(f"{len(old)} variants cannot become {len(new)}.")
        if taken := sorted(set(new) & {line["variant_id"] for line in self.lines(order_id)}):
            raise ToolError(f"Order {order_id} has {', '.join(taken)} already.")
        if len(set(new)) < len(new):
            raise ToolError("A new variant is named twice.")
        swaps: list[tuple[str, str, int]] = []
        for line, variant_id in zip(lines, new, strict=True):
            before = self.row("variants", "variant_id", line["variant_id"])
            after = self.row("variants", "variant_id", variant_id)
            if after["product_id"] != before["product_id"]:
                raise ToolError(f"{variant_id} is another product than {line['variant_id']}.")
            if not after["available"]:
                raise ToolError(f"{variant_id} is not available.")
            swaps.append((line["variant_id"], variant_id, after["price"]))
        difference = sum(price for *_, price in swaps) - sum(line["price"] for line in lines)
        payment = self._payment(order, payment_id)
        if payment["kind"] == "gift card" and payment["balance"] < difference:
            left = money(payment["balance"])
            raise ToolError(f"{payment_id} has {left} left, less than {money(difference)}.")
        return swaps, difference

    def _payment(self, order: sqlite3.Row, payment_id: str) -> sqlite3.Row:
        payment = self.row("payments", "payment_id", payment_id)
        if payment["user_id"] != order["user_id"]:
            raise ToolError(f"{payment_id} is not in the account of {order['user_id']}.")
        return payment

    def _set(self, order_id: str, what: str, *values: str) -> None:
        self.connection.execute(f"update orders set {what} where order_id = ?", [*values, order_id])

    def _request(self, order_id: str, lines: Sequence[tuple[str, str | None]], request: str) -> None:
        self.connection.executemany(
            "update order_lines set request = ?, exchange_for = ? where order_id = ? and variant_id = ?",
            [(request, new, order_id, old) for old, new in lines],
        )

    def _settle(self, order: sqlite3.Row, payment_id: str, amount: int) -> None:
        """Charge a method of payment, or refund a negative amount."""
        self.connection.execute(
            "update payments set balance = balance - ? where payment_id = ? and kind = 'gift card'",
            [amount, payment_id],
        )
        self._book(order, payment_id, "payment" if amount >= 0 else "refund", abs(amount))

    def _book(self, order: sqlite3.Row, payment_id: str, kind: str, amount: int) -> None:
        self.connection.execute(
            "insert into transactions values (?, ?, ?, ?)", [order["order_id"], payment_id, kind, amount]
        )


_FREE_TEXT = ("street", "city", "zip_code")
"""Columns compared without case, spaces and punctuation."""

Row = tuple[Any, ...]
_FOLDER = Path(__file__).parent


def open_shop() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.executescript(_FOLDER.joinpath("schema.sql").read_text())
    for table, rows in _seed().items():
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"insert into {table} values ({marks})", rows)
    connection.commit()
    return connection


def end_state(connection: sqlite3.Connection) -> str:
    """Return a hash of the database, independent of the order of rows and the spelling of addresses."""
    digest = hashlib.sha256()
    for table in sorted(row["name"] for row in connection.execute("select name from sqlite_schema")):
        if table.startswith("sqlite_"):
            continue
        rows = [
            [
                [name, " ".join(re.findall(r"\w+", value.casefold())) if name in _FREE_TEXT else value]
                for name, value in dict(row).items()
            ]
            for row in connection.execute(f"select * from {table}")
        ]
        digest.update(json.dumps([table, sorted(map(json.dumps, rows))]).encode())
    return digest.hexdigest()


def load_rows(name: str) -> list[dict[str, Any]]:
    return load_items(path=_FOLDER / f"{name}.jsonl")


@cache
def _seed() -> dict[str, Sequence[Row]]:
    users, products, orders = load_rows("users"), load_rows("products"), load_rows("orders")
    variants = [(product["product_id"], variant) for product in products for variant in product["variants"]]
    price = {variant["variant_id"]: cents(variant["price"]) for _, variant in variants}
    lines = [(order, variant) for order in orders for variant in order["variant_ids"]]
    return {
        "users": [itemgetter("user_id", "first_name", "last_name", "email", *_FREE_TEXT)(u) for u in users],
        "payments": [
            (payment["payment_id"], user["user_id"], payment["kind"], cents(payment["balance"]))
            for user in users
            for payment in user["payments"]
        ],
        "products": [itemgetter("product_id", "name")(product) for product in products],
        "variants": [
            (v["variant_id"], product, json.dumps(v["options"]), cents(v["price"]), int(v["available"]))
            for product, v in variants
        ],
        "orders": [
            (*itemgetter("order_id", "user_id", "status", "delivered_on", "payment_id", *_FREE_TEXT)(o), None)
            for o in orders
        ],
        "order_lines": [(order["order_id"], variant, price[variant], None, None) for order, variant in lines],
        "transactions": [
            (o["order_id"], o["payment_id"], "payment", sum(price[v] for v in o["variant_ids"]))
            for o in orders
        ],
    }
