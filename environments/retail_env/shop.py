"""The shop as the state of a rollout: what its agent can look up, and what it can change."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from environments.retail_env.amounts import money
from environments.retail_env.lookup import Lookup, Text
from tools.errors import ToolError
from tools.registry import tool
from tools.tool_context import ToolContext

VariantIds = Annotated[list[Text], Field(min_length=1, max_length=20)]
_CHANGED = "pending with changed products"


class Shop(Lookup):
    """Refuses what the database does not allow; whether it was right to ask is the policy's to say."""

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
            swaps = self._swaps(order_id, variant_ids, new_variant_ids)
            difference = sum(swap.difference for swap in swaps)
            self._pays(order, payment_id, difference)
            for swap in swaps:
                self.connection.execute(
                    "update order_lines set variant_id = ?, price = ? where order_id = ? and variant_id = ?",
                    [swap.new, swap.price, order_id, swap.old],
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
            returned = self._ordered(order_id, variant_ids)
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
            swaps = self._swaps(order_id, variant_ids, new_variant_ids)
            difference = sum(swap.difference for swap in swaps)
            self._pays(order, payment_id, difference)
            self._request(order_id, [(swap.old, swap.new) for swap in swaps], "exchange")
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
        ctx.end("transferred to a human")
        return "A colleague takes over."

    def hand_over(self) -> None:
        """Note that a human takes over."""
        with self.connection:
            self.connection.execute("insert into transfers values (1)")
        self.note("transfer_to_human", None)

    def _order(self, order_id: str, *allowed: str) -> sqlite3.Row:
        """The order, if it has one of these statuses."""
        order = self.row("orders", "order_id", order_id)
        if order["status"] not in allowed:
            raise ToolError(f"Order {order_id} is {order['status']}, not {allowed[0]}.")
        return order

    def _ordered(self, order_id: str, variant_ids: Sequence[str]) -> list[sqlite3.Row]:
        lines = {line["variant_id"]: line for line in self.lines(order_id)}
        if missing := sorted(set(variant_ids) - set(lines)):
            raise ToolError(f"Order {order_id} has no {', '.join(missing)}.")
        if len(set(variant_ids)) < len(variant_ids):
            raise ToolError("A variant is named twice.")
        return [lines[variant_id] for variant_id in variant_ids]

    def _swaps(self, order_id: str, old: Sequence[str], new: Sequence[str]) -> list["_Swap"]:
        lines = self._ordered(order_id, old)
        if len(old) != len(new):
            raise ToolError(f"{len(old)} variants cannot become {len(new)}.")
        if taken := sorted(set(new) & {line["variant_id"] for line in self.lines(order_id)}):
            raise ToolError(f"Order {order_id} has {', '.join(taken)} already.")
        if len(set(new)) < len(new):
            raise ToolError("A new variant is named twice.")
        return [self._swap(line, variant_id) for line, variant_id in zip(lines, new, strict=True)]

    def _swap(self, line: sqlite3.Row, new: str) -> "_Swap":
        before = self.row("variants", "variant_id", line["variant_id"])
        after = self.row("variants", "variant_id", new)
        if after["product_id"] != before["product_id"]:
            raise ToolError(f"{new} is another product than {line['variant_id']}.")
        if not after["available"]:
            raise ToolError(f"{new} is not available.")
        return _Swap(old=line["variant_id"], new=new, price=after["price"], paid=line["price"])

    def _payment(self, order: sqlite3.Row, payment_id: str) -> sqlite3.Row:
        """The method of payment, if it is the customer's own."""
        payment = self.row("payments", "payment_id", payment_id)
        if payment["user_id"] != order["user_id"]:
            raise ToolError(f"{payment_id} is not in the account of {order['user_id']}.")
        return payment

    def _pays(self, order: sqlite3.Row, payment_id: str, amount: int) -> None:
        payment = self._payment(order, payment_id)
        if payment["kind"] == "gift card" and payment["balance"] < amount:
            raise ToolError(f"{payment_id} has {money(payment['balance'])} left, less than {money(amount)}.")

    def _set(self, order_id: str, what: str, *values: str) -> None:
        self.connection.execute(f"update orders set {what} where order_id = ?", [*values, order_id])

    def _request(self, order_id: str, lines: Sequence[tuple[str, str | None]], request: str) -> None:
        self.connection.executemany(
            "update order_lines set request = ?, exchange_for = ? where order_id = ? and variant_id = ?",
            [(request, new, order_id, old) for old, new in lines],
        )

    def _settle(self, order: sqlite3.Row, payment_id: str, amount: int) -> None:
        """Take an amount from a method of payment now, or give it back."""
        self.connection.execute(
            "update payments set balance = balance - ? where payment_id = ? and kind = 'gift card'",
            [amount, payment_id],
        )
        self._book(order, payment_id, "payment" if amount >= 0 else "refund", abs(amount))

    def _book(self, order: sqlite3.Row, payment_id: str, kind: str, amount: int) -> None:
        self.connection.execute(
            "insert into transactions values (?, ?, ?, ?)", [order["order_id"], payment_id, kind, amount]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Swap:
    """A variant that takes the place of another one; amounts in cents."""

    old: str
    new: str
    price: int
    paid: int

    @property
    def difference(self) -> int:
        return self.price - self.paid
