"""The shop's database: opened in memory for one rollout, and what it comes to at the end."""

import hashlib
import json
import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jsonlines

from environments.retail_env.amounts import cents

_FREE_TEXT = ("street", "city", "zip_code")
"""Columns that are equal whatever their case, spaces and punctuation."""

Row = tuple[Any, ...]


def open_shop() -> sqlite3.Connection:
    """A database of the shop as it stands at the start. It can be used on the thread that opens it."""
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.executescript(_schema())
    for table, rows in _seed().items():
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"insert into {table} values ({marks})", rows)
    connection.commit()
    return connection


def end_state(connection: sqlite3.Connection) -> str:
    """A hash of all that the database holds, whatever the order of its rows and the spelling of addresses."""
    digest = hashlib.sha256()
    for table in sorted(row["name"] for row in connection.execute("select name from sqlite_schema")):
        if table.startswith("sqlite_"):
            continue
        rows = [_canonical(row) for row in connection.execute(f"select * from {table}")]
        digest.update(json.dumps([table, sorted(rows)]).encode())
    return digest.hexdigest()


def rows_of(name: str) -> list[dict[str, Any]]:
    """The objects of a data file of this environment."""
    with _data(f"{name}.jsonl").open("rb") as lines:
        return list(jsonlines.Reader(lines))


@cache
def _schema() -> str:
    return _data("schema.sql").read_text()


@cache
def _seed() -> dict[str, Sequence[Row]]:
    """The rows of every table, those that others refer to first."""
    users, products, orders = rows_of("users"), rows_of("products"), rows_of("orders")
    variants = [(product["product_id"], variant) for product in products for variant in product["variants"]]
    price = {variant["variant_id"]: cents(variant["price"]) for _, variant in variants}
    lines = [(order, variant) for order in orders for variant in order["variant_ids"]]
    return {
        "users": [_fields(u, "user_id", "first_name", "last_name", "email", *_FREE_TEXT) for u in users],
        "payments": [
            (payment["payment_id"], user["user_id"], payment["kind"], cents(payment["balance"]))
            for user in users
            for payment in user["payments"]
        ],
        "products": [_fields(product, "product_id", "name") for product in products],
        "variants": [
            (v["variant_id"], product, json.dumps(v["options"]), cents(v["price"]), int(v["available"]))
            for product, v in variants
        ],
        "orders": [
            (*_fields(o, "order_id", "user_id", "status", "delivered_on", "payment_id", *_FREE_TEXT), None)
            for o in orders
        ],
        "order_lines": [(order["order_id"], variant, price[variant], None, None) for order, variant in lines],
        "transactions": [
            (o["order_id"], o["payment_id"], "payment", sum(price[v] for v in o["variant_ids"]))
            for o in orders
        ],
    }


def _fields(record: dict[str, Any], *names: str) -> Row:
    return tuple(record[name] for name in names)


def _canonical(row: sqlite3.Row) -> str:
    columns = dict(row).items()
    return json.dumps([[name, _plain(value) if name in _FREE_TEXT else value] for name, value in columns])


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _data(name: str) -> Any:
    return files("environments.retail_env").joinpath(name)
