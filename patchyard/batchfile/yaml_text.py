"""YAML with lines, read with the core rules of YAML 1.2, less what could surprise.

`no`, `on`, `2024-01-01` and `12e4567` (a commit) are text, a key that occurs twice is an error, no tag makes an
object, and anchors may not multiply a document: a few hundred bytes of nested aliases can stand for gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from ledger.errors import BadInput
from patchyard.batchfile.located import LinedDict, LinedList
from patchyard.batchfile.problems import quoted

MOST_ALIASED_NODES = 1_000_000
_PREFIX = "tag:yaml.org,2002:"


class _Loader(yaml.CSafeLoader):
    """libyaml's parser with few implicit types: null, booleans, integers, and floats that have a point."""

    yaml_implicit_resolvers: dict[str, Any] = {}


def _add(tag: str, pattern: str, first: Iterable[str]) -> None:
    _Loader.add_implicit_resolver(_PREFIX + tag, re.compile(rf"^(?:{pattern})$"), list(first))


_add("null", r"~|null|Null|NULL|", ("~", "n", "N", ""))
_add("bool", r"true|True|TRUE|false|False|FALSE", "tTfF")
_add("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789")
_add("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?", "-+.0123456789")
_add("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.")
_add("merge", r"<<", "<")


def parse_yaml(text: str, name: str) -> Any:
    """The one document in `text` with its lines; None for an empty one. `name` stands in errors (BadInput)."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(filter(None, (error.problem, error.context)))
        last = len(text.splitlines()) or 1  # the parser may complain of the line after it
        where = f"{name}:{min(mark.line + 1, last)}" if mark else name
        raise BadInput(f"not well-formed YAML: {what}", where=where, remedy="correct it there") from None
    except yaml.YAMLError as error:
        what = str(error).splitlines()[0]
        raise BadInput(f"not well-formed YAML: {what}", where=name, remedy="correct it") from None
    finally:
        loader.dispose()
    return None if node is None else _Builder(name).build(node)


class _Builder:
    """Nodes to values, each anchored node once; what aliases add is counted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._built: dict[int, tuple[Any, int]] = {}
        self._open: set[int] = set()
        self._aliased = 0

    def build(self, node: yaml.Node) -> Any:
        return self._build(node)[0]

    def _build(self, node: yaml.Node) -> tuple[Any, int]:
        """The value and the number of nodes that it stands for."""
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node), 1
        known = self._built.get(id(node))
        if known is not None:
            self._aliased += known[1]
            if self._aliased > MOST_ALIASED_NODES:
                raise self._wrong(node, "its anchors stand for more than a million values", "write fewer aliases")
            return known
        if id(node) in self._open:
            raise self._wrong(node, "an anchor contains itself", "remove the alias")
        self._open.add(id(node))
        built = self._mapping(node) if isinstance(node, yaml.MappingNode) else self._sequence(node)
        self._open.discard(id(node))
        self._built[id(node)] = built
        return built

    def _sequence(self, node: yaml.Node) -> tuple[LinedList, int]:
        self._check_tag(node, "seq")
        sequence, size = LinedList(_line(node)), 1
        for item in node.value:
            value, nodes = self._build(item)
            sequence.append(value)
            sequence.lines.append(_line(item))
            size += nodes
        return sequence, size

    def _mapping(self, node: yaml.MappingNode) -> tuple[LinedDict, int]:
        self._check_tag(node, "map")
        own, inherited, size = LinedDict(_line(node)), [], 1
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._wrong(key, "a key must be text", "write NAME: VALUE")
            value, nodes = self._build(item)
            size += nodes
            if key.tag == _PREFIX + "merge":
                inherited += self._merged(item, value)
                continue
            if key.value in own:
                first = own.lines[key.value]
                what = f"{quoted(key.value)} is here a second time, first on line {first}"
                raise self._wrong(key, what, "remove one of the two")
            own[key.value] = value
            own.lines[key.value] = _line(key)
        for source in inherited:
            for name, value in source.items():
                if name not in own:
                    own[name] = value
                    own.lines[name] = source.lines.get(name, source.line)
        return own, size

    def _merged(self, node: yaml.Node, value: Any) -> list[LinedDict]:
        sources = value if isinstance(value, LinedList) else [value]
        if not all(isinstance(source, LinedDict) for source in sources):
            raise self._wrong(node, "<< takes a mapping or a list of mappings", "point its alias at a mapping")
        return list(sources)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text, tag = node.value, node.tag.removeprefix(_PREFIX)
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() == "true"
        if tag == "int":
            return self._int(node, text)
        if tag == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if tag != "merge":
            self._check_tag(node, "str")
        return text

    def _int(self, node: yaml.Node, text: str) -> int:
        try:
            return int(text, 0) if text[:2] == "0x" else int(text, 10)
        except ValueError:
            raise self._wrong(node, f"{quoted(text)} is not a usable number", "put it in quotes") from None

    def _check_tag(self, node: yaml.Node, tag: str) -> None:
        if node.tag != _PREFIX + tag:
            raise self._wrong(node, f"the tag {quoted(node.tag)} is not supported", "write plain values without tags")

    def _wrong(self, node: yaml.Node, what: str, remedy: str) -> BadInput:
        return BadInput(what, where=f"{self._name}:{_line(node)}", remedy=remedy)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
