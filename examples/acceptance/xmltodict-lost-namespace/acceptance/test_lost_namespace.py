"""A namespace declaration stays on the element that declares it, with or without other attributes."""

import xmltodict

NAMESPACE = "http://example.test/ns"


def parse(text):
    return xmltodict.parse(text, process_namespaces=True)


def test_a_declaration_without_other_attributes():
    root = parse(f'<a xmlns="{NAMESPACE}"><b>1</b></a>')[f"{NAMESPACE}:a"]
    assert root["@xmlns"] == {"": NAMESPACE}


def test_a_declaration_does_not_move_to_a_child():
    root = parse(f'<a xmlns:n="{NAMESPACE}"><b id="7">1</b></a>')["a"]
    assert root["@xmlns"] == {"n": NAMESPACE}
    assert root["b"] == {"@id": "7", "#text": "1"}


def test_a_declaration_beside_an_attribute():
    root = parse(f'<a xmlns="{NAMESPACE}" id="7">1</a>')[f"{NAMESPACE}:a"]
    assert root == {"@xmlns": {"": NAMESPACE}, "@id": "7", "#text": "1"}


def test_no_declaration():
    assert parse("<a><b>1</b></a>") == {"a": {"b": "1"}}
