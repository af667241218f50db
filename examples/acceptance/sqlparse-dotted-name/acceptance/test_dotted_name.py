"""The real name of a qualified identifier is its last part, however many parts there are."""

import sqlparse
from sqlparse.sql import Identifier


def identifier(text):
    found = sqlparse.parse(text)[0].tokens[0]
    assert isinstance(found, Identifier)
    return found


def test_three_parts():
    assert identifier("shop.public.orders").get_real_name() == "orders"


def test_four_quoted_parts():
    assert identifier('"srv"."shop"."public"."orders"').get_real_name() == "orders"


def test_three_parts_with_an_alias():
    table = identifier("shop.public.orders AS o")
    assert (table.get_real_name(), table.get_alias(), table.get_name()) == ("orders", "o", "o")


def test_two_parts():
    table = identifier("public.orders")
    assert (table.get_real_name(), table.get_parent_name()) == ("orders", "public")


def test_one_part_with_an_alias():
    table = identifier("orders o")
    assert (table.get_real_name(), table.get_alias()) == ("orders", "o")
