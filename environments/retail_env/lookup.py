"""What the shop's agent can look up: customers, orders and products, as tools of the rollout's state."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from environments.retail_env.amounts import money
from tools.errors import ToolError
from tools.registry import tool
from tools.tool_context import State

Shown = dict[str, Any]
Text = Annotated[str, Field(min_length=1, max_length=100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a tool did; calls that were refused are none."""

    tool: str
    user_id: str | None
    """Whose data it was about; `None`: nobody's."""
    arguments: Mapping[str, Any]


class Lookup(State):
    """A shop that is only read."""

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
        """Keep that a tool did something."""
        self.events.append(Event(tool=tool, user_id=user_id, arguments=arguments))

    def row(self, table: str, key: str, value: str) -> sqlite3.Row:
        """The row of a table with this key.

        Raises:
            ToolError: there is none.
        """
        row = self.connection.execute(f"select * from {table} where {key} = ?", [value]).fetchone()
        if row is None:
            raise ToolError(f"There is no {key.removesuffix('_id')} {value!r}.")
        return row

    def lines(self, order_id: str) -> list[sqlite3.Row]:
        """What was ordered."""
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
