"""Edits of YAML text: what they give, what they leave as it is, and what can't be edited.

Random documents are written in random styles by _Writer; PyYAML's SafeLoader says what they mean.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from drainagent.patch import Add, Change, Path, Remove, Replace, apply
from drainagent.workstation import yaml_edit
from drainagent.workstation.yaml_edit import CannotEdit, YamlError, duplicate_keys, edit, read_stream, to_data


class _Plain(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's reading, but timestamps and "=" are text."""


_Plain.add_constructor("tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_yaml_str)
_Plain.add_constructor("tag:yaml.org,2002:value", yaml.SafeLoader.construct_yaml_str)

_WORDS = """on 1e3 0x10 60 2001-01-01 ~ = << null y No a: a:b #a a#b -a --a - : ? *a &a !a %a @a `a | > 'a' "a" { [ , ]
} 0o7 1_000 1:30 .5 .inf +1 -1 é 😀 a\\b /x _ http://x:8000/y x:1 a,b $(X) --- ... True 0b1 NaN"""
TEXTS = [
    *_WORDS.split(),
    "",
    "a: b",
    "a #b",
    "- a",
    "a  b",
    " a",
    "a ",
    "a\nb",
    "a\n",
    "\ta",
    "a\x85b",
    "\u2028",
    "\ufeff",
    "\x7f",
    "\x00",
    "x" * 200,
    "a\r\nb",
]
KEYS = ["a", "b", "name", "image", "args", "x.io/y", "c-d", "on", "60", "a b", "é"]


def _words(rng: random.Random) -> str:
    return " ".join(rng.choices(["main", "b", "e:f", "x#y", "é", "😀", "60", "-z"], k=rng.randint(1, 3)))


def _value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.choice("stifbnlmlm" if depth < 3 else "stifbn")
    if kind == "l":
        return [_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if kind == "m":
        return {rng.choice(KEYS + TEXTS): _value(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return {
        "s": rng.choice(TEXTS),
        "t": _words(rng),
        "i": rng.randint(-9, 10**6),
        "f": rng.choice([0.5, 1e16, -1e-7, 2.0]),
        "b": rng.random() < 0.5,
        "n": None,
    }[kind]


class _Writer:
    """Writes random block YAML: lists of lines, each with its indent."""

    def __init__(self, rng: random.Random, flow: bool = True, compact: bool = True) -> None:
        self.rng, self.flow, self.compact = rng, flow, compact
        self.step, self.offset = rng.choice([1, 2, 2, 4]), rng.choice([0, 0, 1, 2])
        self.comments, self.odd = rng.choice([0.0, 0.3]), rng.choice([0.0, 0.2])
        self.anchors = 0

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def document(self) -> list[str]:
        kind = self.rng.choice("mmmlf" if self.flow else "mmml")
        head = self.rng.choice(
            [["---"], ["--- # 😀: c"], ["---", "# Source: a/b.yaml", ""], ["%YAML 1.1", "# c", "---"]]
        )
        if kind == "f":
            lines = self.flow_value(0, 0).split("\n")
            lines = ["--- " + lines[0], *lines[1:]] if self.chance(0.3) else [*head, *lines]
        else:
            lines = [*head, *(self.mapping(0, 0) if kind == "m" else self.sequence(0, 0))]
        return lines + self.rng.choice([[], [], ["# end", ""], ["..."], ["...", "# after", ""]])

    def trailing(self) -> str:
        return self.rng.choice([" # c", "  # é: 😀", "\t# c\t'", " "]) if self.chance(self.comments) else ""

    def between(self, column: int) -> list[str]:
        if not self.chance(self.comments):
            return []
        return self.rng.choice([["#c"], [""], ["", " " * column + "# d: [", ""], [" " * column + "#  - a"]])

    def mapping(self, column: int, depth: int) -> list[str]:
        lines: list[str] = []
        for key in self.rng.sample(KEYS, self.rng.randint(1, 4)):
            text = key if key in KEYS[:6] or self.chance(0.5) else self.rng.choice(["'{}'", '"{}"']).format(key)
            lines += (self.between(column) if lines else []) + self.entry(text, column, depth)
        return lines

    def sequence(self, column: int, depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self.rng.randint(1, 4)):
            lines += (self.between(column) if lines else []) + self.item(column, depth)
        return lines

    def properties(self, tag: str) -> str:
        if not self.chance(self.odd):
            return ""
        self.anchors += 1
        return self.rng.choice(
            [f" &a{self.anchors}", f" !!{tag}", f" !!{tag} &a{self.anchors}", f" &a{self.anchors} !!{tag}"]
        )

    def entry(self, key: str, column: int, depth: int) -> list[str]:
        pad, kind = " " * column, self.rng.choice("sssmmlll" if depth < 4 else "s")
        if self.chance(self.odd / 3):
            first, *rest = self.scalar(column, "")
            return [f"{pad}? {key}{self.trailing()}", *self.between(column), f"{pad}: {first}".rstrip(" "), *rest]
        if kind == "s":
            first, *rest = self.scalar(column, " ")
            return [f"{pad}{key}:{first}", *rest]
        head = f"{pad}{key}:{self.properties('map' if kind == 'm' else 'seq')}{self.trailing()}"
        if kind == "m":
            inner = column + self.step
            return [head, *self.between(inner), *self.mapping(inner, depth + 1)]
        inner = column + (self.rng.choice([0, 2, 3]) if self.chance(self.odd) else self.offset)
        return [head, *self.between(inner), *self.sequence(inner, depth + 1)]

    def item(self, column: int, depth: int) -> list[str]:
        pad, kind = " " * column, self.rng.choice("ssmmml" if depth < 4 else "s")
        if kind == "s":
            first, *rest = self.scalar(column, " ")
            return [f"{pad}-{first}", *rest]
        if self.chance(self.odd) or (kind == "l" and not self.compact):
            inner = column + self.step
            head = f"{pad}-{self.properties('map' if kind == 'm' else 'seq')}{self.trailing()}"
            return [head, *self.between(inner), *(self.mapping if kind == "m" else self.sequence)(inner, depth + 1)]
        inner = column + (3 if self.chance(self.odd) else 2)
        first, *rest = (self.mapping if kind == "m" else self.sequence)(inner, depth + 1)
        return [pad + "-" + first[column + 1 :], *rest]

    def scalar(self, column: int, space: str) -> list[str]:
        """What comes behind ":" or "-", and the lines after it."""
        kind, inner = self.rng.choice("ppppqqnbbwf"), " " * (column + self.rng.randint(1, 3))
        properties = self.properties("str") if kind in "pq" and space else ""
        if kind == "f" and self.flow:
            return (space + self.flow_value(column + 1, 1) + self.trailing()).split("\n")
        if kind == "n":
            return [self.rng.choice(["", "", space + "~", space + "null"]) + self.trailing()]
        if kind == "b":
            header = self.rng.choice("|>") + self.rng.choice(
                ["", "-", "+", str(len(inner) - column), f"{len(inner) - column}+"]
            )
            lines = [inner + self.rng.choice([_words(self.rng), " x", ""]) for _ in range(self.rng.randint(0, 3))]
            lines = [inner + "x", *lines] if lines and not any(line.strip() for line in lines) else lines
            blank = self.rng.choice([[], [], [""], ["", ""], [inner[:-1]]])
            first = next((line for line in lines if line.strip()), "")
            if first.startswith(inner + " ") and not header[1:2].isdigit():
                lines = [inner + "y", *lines]
            return [space + header + self.trailing(), *lines, *blank]
        if kind == "w":
            quote = self.rng.choice(["'", '"', ""])
            return [
                f"{space}{quote}a b",
                "" if self.chance(0.3) else f"{inner}d",
                f"{inner}c#d{quote}{self.trailing()}",
            ]
        text = self.rng.choice(["1", "1.5", "true", "2001-01-01", "0x10", "a:b"]) if kind == "p" else ""
        text = text or self.rng.choice([json.dumps(_words(self.rng), ensure_ascii=False), "'it''s # 1'", '"a\\tb"'])
        return [properties + space + text + self.trailing()]

    def flow_value(self, column: int, depth: int) -> str:
        """At or right of ``column`` in every line."""
        kind = self.rng.choice("smml" if depth < 4 else "s") if depth else self.rng.choice("ml")
        if kind == "s":
            return self.rng.choice(["1", "a", '"b c"', "'d'", "null", "true", "x:y", '"😀"'])
        pad = " " * column
        inner = column + self.step
        values = [self.flow_value(inner, depth + 1) for _ in range(self.rng.randint(0, 3))]
        if kind == "m":
            keys = self.rng.sample(KEYS[:6], len(values))
            values = [
                f"{self.rng.choice([key, json.dumps(key)])}: {value}" for key, value in zip(keys, values, strict=True)
            ]
        opening, closing = "{}" if kind == "m" else "[]"
        comma = "," if values and self.chance(self.odd) else ""
        if self.chance(0.4) and values:
            return f"{opening}\n{' ' * inner}" + f",\n{' ' * inner}".join(values) + f"{comma}\n{pad}{closing}"
        space = self.rng.choice(["", " "])
        return opening + space + ", ".join(values) + comma + space + closing


def _stream(rng: random.Random, **options: bool) -> str:
    lines: list[str] = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        document = _Writer(rng, **options).document()
        if document[0].startswith("%") and lines and lines[-1] not in ("...", ""):
            lines.append("...")
        lines += document
    if lines[0] == "---" and rng.random() < 0.3:
        del lines[0]
    lines = [re.sub("^([ -]*[-:] ?)\t", r"\1 ", line) for line in lines]  # libyaml takes no tab there
    text = "\n".join(lines) + rng.choice(["\n", "\n", ""])
    text = text.replace("\n", "\r\n") if rng.random() < 0.2 else text
    return "\ufeff" + text if rng.random() < 0.1 else text


def _changes(rng: random.Random, data: Any, often: float, adds_only: bool = False) -> list[Change]:
    changes: list[Change] = []

    def visit(value: Any, path: Path) -> None:
        kind = rng.choice("arx") if path and not adds_only and rng.random() < often else ""
        if kind == "x":
            return changes.append(Remove(path))
        if kind == "r":
            return changes.append(Replace(path, _value(rng)))
        if kind == "a" and value is None and isinstance(path[-1], str):
            return changes.append(Add(path, _value(rng)))
        if isinstance(value, dict):
            for key, inner in value.items():
                if isinstance(key, str):
                    visit(inner, (*path, key))
            names = [name for name in ("new", "on", "n: 2") if name not in value and rng.random() < often]
            changes.extend(Add((*path, name), _value(rng)) for name in names)
        elif isinstance(value, list):
            for index in range(len(value) + 1):
                if index < len(value):
                    visit(value[index], (*path, index))
                count = rng.randint(1, 2) if rng.random() < often else 0
                changes.extend(Add((*path, index), _value(rng)) for _ in range(count))
        return None

    visit(data, ())
    return changes


def _inverse(changes: list[Change]) -> list[Change]:
    """Takes away what Adds added: their paths in the document after them."""
    removed: list[Change] = []
    for number, change in enumerate(changes):
        path: list[str | int] = []
        for depth, part in enumerate(change.path):
            moved = 0
            if isinstance(part, int):
                for other_number, other in enumerate(changes):
                    if len(other.path) == depth + 1 and other.path[:depth] == change.path[:depth]:
                        index = other.path[depth]
                        assert isinstance(index, int)
                        own = depth + 1 == len(change.path)
                        moved += index < part or (index == part and (not own or other_number < number))
            path.append(part + moved if isinstance(part, int) else part)
        removed.append(Remove(tuple(path)))
    return removed


def _oracle(text: str) -> Any:
    return yaml.load(text, Loader=_Plain)


def _same(first: Any, second: Any) -> bool:
    return repr(first) == repr(second)


def _each(text: str) -> Iterator[tuple[str, yaml_edit.Document, Any]]:
    documents = read_stream(text)
    assert "".join(text[document.start : document.end] for document in documents) == text
    for document in documents:
        own = text[document.start : document.end]
        assert document.line == len(re.findall("\r\n|\n", text[: document.start])) + 1
        yield own, document, to_data(document)


# ---- reading


@pytest.fixture(params=["libyaml", "Python"])
def _loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of PyYAML's parsers: the fallback gives the same."""
    if request.param == "Python":
        monkeypatch.setattr(yaml_edit, "_LOADER", yaml.SafeLoader)


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize(
    ("text", "slices"),
    [
        ("", []),
        ("# only\n", [("# only\n", 1)]),
        ("a: 1", [("a: 1", 1)]),
        (
            "# c\n---\na: 1\n---\n# Source: x\n---\nb: 1\n",
            [("# c\n---\na: 1\n", 1), ("---\n# Source: x\n", 4), ("---\nb: 1\n", 6)],
        ),
        ("a: 1\n...\n# c\n%YAML 1.1\n# d\n---\nb: 1\n", [("a: 1\n...\n# c\n", 1), ("%YAML 1.1\n# d\n---\nb: 1\n", 4)]),
        (
            "\ufeff--- {a: 1}\r\n--- # 😀\r\nb: |\r\n  ---\r\n",
            [("\ufeff--- {a: 1}\r\n", 1), ("--- # 😀\r\nb: |\r\n  ---\r\n", 2)],
        ),
        ("---\n---\n...\n", [("---\n", 1), ("---\n...\n", 2)]),
    ],
)
def test_a_stream_is_cut_at_its_documents(text: str, slices: list[tuple[str, int]]) -> None:
    documents = read_stream(text)
    assert [(text[document.start : document.end], document.line) for document in documents] == slices
    assert [document.root is None for document in documents] == [not re.search("[ab]: ", own) for own, _ in slices]


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n---\nb:\n- c\n d: 1\n", r"line 5, column 3: .*"),
        ("é: '😀' b\n", r"line 1, column 8: .*"),
        ("a: {{ .Values.x }\n", r"line 2, column 1: .*"),
        ("é: 1\nb: \x01\n", r"line 2, column 4: the character U\+0001 is not allowed"),
        ("a: 1\nb: *x\n", r"line 2, column 4: there is no anchor &x"),
        ("a: &x 1\n---\nb: *x\n", r"line 3, column 4: there is no anchor &x"),
        ("a: " + "[" * 300, r"line 1, column 203: nested deeper than 200 levels"),
    ],
)
def test_what_is_not_yaml(text: str, message: str) -> None:
    with pytest.raises(YamlError, match=f"^{message}$"):
        read_stream(text)


def test_half_of_a_surrogate_pair_is_not_yaml() -> None:
    with pytest.raises(YamlError, match=r"^line 2, column 1: the character U\+D800 is not allowed$"):
        read_stream("é: 1\n\ud800: 1\n")


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("[on, 1e3, 0x10, 010, 1:30, 2001-01-01, ~, =, .5, 1_0, 0x_, <<]",
         [True, "1e3", 16, 8, 90, "2001-01-01", None, "=", 0.5, 10, "0x_", "<<"]),
        ("[!!str 1, !!int '1', !!float 1, ! 1, !!bool on, !!null '', !!timestamp 2001-01-01]",
         ["1", 1, 1.0, "1", True, None, "2001-01-01"]),
        ("a: &a {x: 1, y: 2}\nb: {y: 3, <<: *a, z: 4}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3, "z": 4}}),
        ("- &a {x: 1}\n- &b {x: 2, y: 2}\n- <<: [*a, *b]\n- {<<: *a, '<<': 1}",
         [{"x": 1}, {"x": 2, "y": 2}, {"x": 1, "y": 2}, {"x": 1, "<<": 1}]),
        ("- &a k\n- {*a : *a}", ["k", {"k": "k"}]),
        ("{a: 1, b: 2, a: 3}", {"a": 3, "b": 2}),
        ("{2: a, on: b}", {2: "a", True: "b"}),
        ("a: " + "[" * 198 + "]" * 198, None),
    ],
)  # fmt: skip
def test_data(text: str, data: Any) -> None:
    (document,) = read_stream(text)
    assert _same(to_data(document), _oracle(text) if data is None else data)


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n  !Ref b", "line 2: the tag !Ref is not known"),
        ("a: !!binary aGk=", "line 1: the tag !!binary is not known"),
        ("a: !!set {b}", "line 1: the tag !!set on a map is not known"),
        ("a: !x [b]", "line 1: the tag !x on a list is not known"),
        ("a: !!int b", "line 1: 'b' is no !!int"),
        ("a: 1\n? [b]\n: c", "line 2: a key that is a map or a list"),
        ("a: &a\n- *a", r"line 2: \*a stands inside of what it refers to"),
        ("a: 1\n<<: 2", "line 2: << merges what is no map"),
        (
            "x: &a [1,2,3,4,5,6,7,8,9,0]\n"
            + "".join(f"y{n}: &b{n} [{','.join([f'*b{n - 1}' if n else '*a'] * 10)}]\n" for n in range(7)),
            r"line 6: the aliases up to \*b3 expand to too many values",
        ),
    ],
)
def test_what_has_no_plain_data(text: str, message: str) -> None:
    (document,) = read_stream(text)
    with pytest.raises(CannotEdit, match=f"^{message}$"):
        to_data(document)


def test_duplicate_keys() -> None:
    first, second = read_stream("a: 1\nb: {c: 1, c: 2}\n'a': 2\n<<: {}\n<<: {}\n---\na: 1\n")
    assert duplicate_keys(first) == [("a", 1, 3), ("c", 2, 2)]
    assert duplicate_keys(second) == []


# ---- styles: "+" before a line that the changes give, "-" before one that they take away


def _marked(text: str) -> tuple[str, str]:
    lines = [line[8:] or " " for line in text.split("\n")[1:-1]]
    assert all(line[0] in " +-" for line in lines)
    before, after = ([line[1:] for line in lines if line[0] != other] for other in "+-")
    return "\n".join(before) + "\n", "\n".join(after) + "\n"


STYLES: dict[str, tuple[str, list[Change]]] = {
    "a key behind the last line of the last value": (
        """
         spec:
           a:
             b:
             - c # trailing
        +  new: 1
           # below
         # end
        """,
        [Add(("spec", "new"), 1)],
    ),
    "the deeper one first, dashes in the column of the keys": (
        """
         spec:
           containers:
           - name: a
             env:
             - name: b
        +      value: "1"
        +    - name: c
        +    tty: true
        +  - name: d
        +  volumes:
        +  - name: e
        +kind: Pod
        """,
        [
            Add(("kind",), "Pod"),
            Add(("spec", "volumes"), [{"name": "e"}]),
            Add(("spec", "containers", 1), {"name": "d"}),
            Add(("spec", "containers", 0, "tty"), True),
            Add(("spec", "containers", 0, "env", 1), {"name": "c"}),
            Add(("spec", "containers", 0, "env", 0, "value"), "1"),
        ],
    ),
    "items first, in between and last, with wide indents": (
        """
         a: # list
        +    -   x: 1
        +        b:
        +            -   z: 2
        +            -   - 3
             # one
             -   x: 1
        +    - 4
        +    - 5
             # two
             -   x:
                     -   y: 2
        +    - {}

             # end
        """,
        [
            Add(("a", 0), {"x": 1, "b": [{"z": 2}, [3]]}),
            Add(("a", 1), 4),
            Add(("a", 1), 5),
            Add(("a", 2), {}),
        ],
    ),
    "lists as their siblings have them": (
        """
         a:
         - 1
         b:
             c:
               - d: 1
                 e:
                 - 2
             f: 3
        +    g:
        +      - 4
        """,
        [Add(("b", "g"), [4])],
    ),
    "null gets a value": (
        """
        -a:
        +a: 1
         b: # c
        +  - 2
        -c: ~ # d
        +c: # d
        +  e: 3
        -f: null
        +f: {}
         g:
        -  - h:
        +  - h: x
        +    i: 1
        """,
        [
            Add(("a",), 1),
            Add(("b",), [2]),
            Add(("c",), {"e": 3}),
            Add(("f",), {}),
            Add(("g", 0, "h"), "x"),
            Add(("g", 0, "i"), 1),
        ],
    ),
    "a list in a list": (
        """
        -- - a
        +- - 1
        +  - a
           - b
        +  - 2
         -
        +  - 3
           - c
        """,
        [Add((0, 0), 1), Add((0, 2), 2), Add((1, 0), 3)],
    ),
    "text blocks": (
        """
         a:
           b: |
             x

             y
        +  new: 1

         c:
           d: >+2 # keep

               x

        +  new: 1
         # end
         e:
           f: |-
        +  new: 1
        """,
        [Add((key, "new"), 1) for key in "ace"],
    ),
    "scalars in several lines": (
        """
         a:
           b: x
             y # c
        +  new: 1
         c:
           d: "x

          y"
        +  new: 1
        """,
        [Add((key, "new"), 1) for key in "ac"],
    ),
    "brackets in a line": (
        """
        -a: [] # c
        -b: {c: [x, y,], d: { } }
        +a: [{"name": "x", "n": null}] # c
        +b: {c: [0, x, 1, y, "on",], d: {"k": 2 }, "z": [] }
        """,
        [
            Add(("a", 0), {"name": "x", "n": None}),
            Add(("b", "c", 0), 0),
            Add(("b", "c", 1), 1),
            Add(("b", "c", 2), "on"),
            Add(("b", "d", "k"), 2),
            Add(("b", "z"), []),
        ],
    ),
    "brackets over several lines": (
        """
         command: [
           # first
        +  "a",
        -  serve, # c
        -  model
        +  serve,
        +  "b", # c
        +  model,
        +  {
        +    "x": [
        +      1
        +    ]
        +  }
         ]
        """,
        [Add(("command", 0), "a"), Add(("command", 1), "b"), Add(("command", 2), {"x": [1]})],
    ),
    "other values": (
        """
        -a: 1 # c
        -b: 'x'
        -c: &x |
        -  text
        +a: 2 # c
        +b: "on"
        +c: "y"
         d: # e
        -  - 1
        -  # in between
        -  - 2 # f
        +  g: 1
         # after
        -h: &y
        -  i: 1
        -j: [1, 2] # k
        +h: null
        +j: {"l": 1} # k
        """,
        [
            Replace(("a",), 2),
            Replace(("b",), "on"),
            Replace(("c",), "y"),
            Replace(("d",), {"g": 1}),
            Replace(("h",), None),
            Replace(("j",), {"l": 1}),
        ],
    ),
    "removed keys": (
        """
         # head
        -a:
        -  - 1
        -  # in
        -  - 2 # c
         # between
         b: 1
        -c: |
        -  text

         # end
        """,
        [Remove(("a",)), Remove(("c",))],
    ),
    "the first key in a line with a dash": (
        """
        -- a: 1 # c
        -  b: 2
        -  c: 3
        +- c: 3
        -- a: 1
        -  # d
        +- # d
           b: 2
        -- - 1
        -  - 2
        +- - 2
        -- a: 1 # c
        -  b: 2
        +- {}
        """,
        [Remove((0, "a")), Remove((0, "b")), Remove((1, "a")), Remove((2, 0)), Remove((3, "a")), Remove((3, "b"))],
    ),
    "the last one": (
        """
        -a: # c
        -  b: 1
        +a: {} # c
           # d
        -e: &x
        -- 1 # f
        -- 2
        -g: {h: 1,}
        -i: [ 1 ]
        +e: &x []
        +g: {}
        +i: []
        """,
        [
            Remove(("a", "b")),
            Remove(("e", 0)),
            Remove(("e", 1)),
            Remove(("g", "h")),
            Remove(("i", 0)),
        ],
    ),
    "one for another": (
        """
         a:
        +- 3
        -- 1
         # c
        -- 2
         - 4
        -b:
        -- 1
        -c: [1, 2]
        +b:
        +- 5
        +c: [2, 3]
        """,
        [
            Remove(("a", 0)),
            Remove(("a", 1)),
            Add(("a", 2), 3),
            Remove(("b", 0)),
            Add(("b", 1), 5),
            Remove(("c", 0)),
            Add(("c", 2), 3),
        ],
    ),
    "explicit keys": (
        """
         ? a
         : - 1
        +  - 2
         ? b # no value
        -? c
        -: d
        +new: 1
         # end
        """,
        [Add(("a", 1), 2), Remove(("c",)), Add(("new",), 1)],
    ),
    "anchors and tags": (
        """
         --- &root !!map
         a: &x !!seq # c
        +- 0
         - &y
           b: 1
        +  c: 2
        +new: 1
        """,
        [Add(("a", 0), 0), Add(("a", 0, "c"), 2), Add(("new",), 1)],
    ),
    "an alias beside it": (
        """
         a: &x
         - 1
        -b: *x
        +b: 2
         c:
           d: *x
        +  e: 3
         f:
           <<: {g: 1}
        +  h: 4
        """,
        [Replace(("b",), 2), Add(("c", "e"), 3), Add(("f", "h"), 4)],
    ),
    "document markers": (
        """
         %YAML 1.1
         --- # a: 1
         # b
         c: 1
        +d: 2
         ...
         # after
        """,
        [Add(("d",), 2)],
    ),
    "the whole": (
        """
         ---
         # head
        -a: 1
        -b: 2
        +- x: 1
        +- 2
        """,
        [Replace((), [{"x": 1}, 2])],
    ),
    "a list of documents' first item": (
        """
         # head
        +- 0
         - 1
        """,
        [Add((0,), 0)],
    ),
}


# ---- as tools write them


def _injected(spec: Path, volumes: bool) -> list[Change]:
    """What an injection does to the first container of a Pod spec."""
    container = (*spec, "containers", 0)
    volume = {"name": "drainagent", "emptyDir": {}}
    return [
        Add((*container, "command", 3), "--enable-server-load-tracking"),
        Add((*container, "lifecycle"), {"preStop": {"exec": {"command": ["python3", "--grace", "60"]}}}),
        Add((*container, "volumeMounts", 1), {"name": "drainagent", "mountPath": "/opt/drainagent", "readOnly": True}),
        Replace((*spec, "terminationGracePeriodSeconds"), 60),
        Add((*spec, "initContainers"), [{"name": "drainagent", "image": "registry:5000/drainagent:v1"}]),
        Add((*spec, "volumes", 1), volume) if volumes else Add((*spec, "volumes"), [volume]),
    ]


TOOLS: dict[str, tuple[str, list[Change]]] = {
    "helm template": (
        """
         ---
         # Source: vllm/templates/deployment.yaml
         apiVersion: apps/v1
         kind: Deployment
         metadata:
           name: release-name-vllm
           labels:
             helm.sh/chart: vllm-0.1.0
             app.kubernetes.io/version: "0.9.1"
         spec:
           template:
             metadata:
               annotations:
                 checksum/config: 01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b
             spec:
        -      terminationGracePeriodSeconds: 30
        +      terminationGracePeriodSeconds: 60
               securityContext:
                 {}
               containers:
                 - name: vllm
                   securityContext:
                     {}
                   image: "vllm/vllm-openai:v0.9.1"
                   command:
                     - vllm
                     - serve
                     - "meta-llama/Llama-3.1-8B" # the model
        +            - --enable-server-load-tracking
                   env:
                     - name: HF_TOKEN
                       valueFrom: {secretKeyRef: {name: hf, key: token}}
                   # -- resources
                   resources:
                     limits:
                       nvidia.com/gpu: 1
                   volumeMounts:
                     - name: cache
                       mountPath: /cache
        +            - name: drainagent
        +              mountPath: /opt/drainagent
        +              readOnly: true
        +          lifecycle:
        +            preStop:
        +              exec:
        +                command:
        +                  - python3
        +                  - --grace
        +                  - "60"
               volumes:
                 # - name: commented
                 - name: cache
                   emptyDir: {}
        +        - name: drainagent
        +          emptyDir: {}
        +      initContainers:
        +        - name: drainagent
        +          image: registry:5000/drainagent:v1
               # nodeSelector:
               #   gpu: "true"
        """,
        _injected(("spec", "template", "spec"), volumes=True),
    ),
    "kubectl get -o yaml": (
        """
         apiVersion: v1
         items:
         - apiVersion: apps/v1
           kind: StatefulSet
           metadata:
             annotations:
               kubectl.kubernetes.io/last-applied-configuration: |
                 {"apiVersion":"apps/v1","kind":"StatefulSet","spec":{"template":{"spec":{"containers":[]}}}}
             creationTimestamp: "2025-01-01T00:00:00Z"
             generation: 1
             name: vllm
           spec:
             template:
               metadata:
                 creationTimestamp: null
               spec:
                 containers:
                 - command:
                   - vllm
                   - serve
                   - model
        +          - --enable-server-load-tracking
                   image: vllm/vllm-openai
                   name: vllm
                   volumeMounts:
                   - mountPath: /cache
                     name: cache
        +          - name: drainagent
        +            mountPath: /opt/drainagent
        +            readOnly: true
        +          lifecycle:
        +            preStop:
        +              exec:
        +                command:
        +                - python3
        +                - --grace
        +                - "60"
                 dnsPolicy: ClusterFirst
        -        terminationGracePeriodSeconds: 30
        +        terminationGracePeriodSeconds: 60
        +        initContainers:
        +        - name: drainagent
        +          image: registry:5000/drainagent:v1
        +        volumes:
        +        - name: drainagent
        +          emptyDir: {}
             updateStrategy:
               type: RollingUpdate
           status:
             replicas: 0
         kind: List
         metadata:
           resourceVersion: ""
        """,
        _injected(("items", 0, "spec", "template", "spec"), volumes=False),
    ),
    "kustomize build": (
        """
         apiVersion: leaderworkerset.x-k8s.io/v1
         kind: LeaderWorkerSet
         spec:
           leaderWorkerTemplate:
             workerTemplate:
               spec:
                 containers:
                 - command:
                   - vllm
                   - serve
                   - |-
                     a
                     b
        +          - --enable-server-load-tracking
                   name: vllm
                   volumeMounts:
                   - mountPath: /cache
                     name: cache
        +          - name: drainagent
        +            mountPath: /opt/drainagent
        +            readOnly: true
        +          lifecycle:
        +            preStop:
        +              exec:
        +                command:
        +                - python3
        +                - --grace
        +                - "60"
        -        terminationGracePeriodSeconds: 30
        +        terminationGracePeriodSeconds: 60
                 volumes:
                 - emptyDir: {}
                   name: cache
        +        - name: drainagent
        +          emptyDir: {}
        +        initContainers:
        +        - name: drainagent
        +          image: registry:5000/drainagent:v1
        """,
        _injected(("spec", "leaderWorkerTemplate", "workerTemplate", "spec"), volumes=True),
    ),
    "kubectl get -o json": (
        """
         {
             "apiVersion": "v1",
             "items": [
                 {
                     "kind": "Pod",
                     "spec": {
                         "containers": [
                             {
                                 "command": [
                                     "vllm",
                                     "serve",
        -                            "model"
        +                            "model",
        +                            "--enable-server-load-tracking"
                                 ],
                                 "volumeMounts": [
                                     {
                                         "mountPath": "/cache",
                                         "name": "cache"
        +                            },
        +                            {
        +                                "name": "drainagent",
        +                                "mountPath": "/opt/drainagent",
        +                                "readOnly": true
                                     }
        -                        ]
        +                        ],
        +                        "lifecycle": {
        +                            "preStop": {
        +                                "exec": {
        +                                    "command": [
        +                                        "python3",
        +                                        "--grace",
        +                                        "60"
        +                                    ]
        +                                }
        +                            }
        +                        }
                             }
                         ],
        -                "terminationGracePeriodSeconds": 30
        +                "terminationGracePeriodSeconds": 60,
        +                "initContainers": [
        +                    {
        +                        "name": "drainagent",
        +                        "image": "registry:5000/drainagent:v1"
        +                    }
        +                ],
        +                "volumes": [
        +                    {
        +                        "name": "drainagent",
        +                        "emptyDir": {}
        +                    }
        +                ]
                     }
                 }
             ],
             "kind": "List"
         }
        """,
        _injected(("items", 0, "spec"), volumes=False),
    ),
}
CASES = {**STYLES, **TOOLS}


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("name", CASES)
def test_styles(name: str, ends: str) -> None:
    text, changes = CASES[name]
    before, after = (part.replace("\n", ends) for part in _marked(text))
    (document,) = read_stream(before)
    assert edit(before, document, changes) == after
    # The same at another place of a stream, and without an end.
    marker = "" if before.startswith("---") else f"...{ends}" if before.startswith("%") else f"--- # c{ends}"
    stream = f"\ufeff😀: 1{ends}{marker}{before}".removesuffix(ends)
    _, second = read_stream(stream)
    own = stream[second.start :]
    edited = edit(own, second, changes)
    assert stream[: second.start] + edited == f"\ufeff😀: 1{ends}{marker}{after}".removesuffix(ends)


SCALARS = {
    "main": "main",
    "a:b": "a:b",
    "http://127.0.0.1:8000/metrics": "http://127.0.0.1:8000/metrics",
    "--grace": "--grace",
    "-IB": "-IB",
    "vllm/vllm-openai:v0.9.1@sha256:abc": "vllm/vllm-openai:v0.9.1@sha256:abc",
    "two words": "two words",
    "60": '"60"',
    "1e3": '"1e3"',
    "0x10": '"0x10"',
    "on": '"on"',
    "Y": '"Y"',
    "null": '"null"',
    "~": '"~"',
    "=": '"="',
    "<<": '"<<"',
    "": '""',
    "2001-01-01": '"2001-01-01"',
    "1:30": '"1:30"',
    ".inf": '".inf"',
    "a: b": '"a: b"',
    "a #b": '"a #b"',
    "a:": '"a:"',
    "- a": '"- a"',
    "a\nb\n": '"a\\nb\\n"',
    "$(X)": '"$(X)"',
    "é😀": '"é😀"',
    "\x85\u2028\ufeff\x7f": '"\\u0085\\u2028\\ufeff\\u007f"',
    "a\"\\'": '"a\\"\\\\\'"',
}


def test_text_with_quotes_reads_better_in_single_ones() -> None:
    (document,) = read_stream("a: {}\n")
    changes = [Add(("b",), '{"c":"\\\\d"}'), Add(("a", "b"), '"')]
    assert edit("a: {}\n", document, changes) == 'a: {"b": "\\""}\nb: \'{"c":"\\\\d"}\'\n'


@pytest.mark.parametrize("text", SCALARS)
def test_text_stays_text(text: str) -> None:
    (document,) = read_stream("a: {}\nb: 1\n")
    quoted = SCALARS[text] if SCALARS[text].startswith('"') else f'"{text}"'
    assert edit("a: {}\nb: 1\n", document, [Add(("c",), text), Add((text,), 1), Add(("a", "b"), text)]) == (
        f'a: {{"b": {quoted}}}\nb: 1\nc: {SCALARS[text]}\n{SCALARS[text]}: 1\n'
    )


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (True, "true"), (-1, "-1"), (0.5, "0.5"), (1e16, "1.0e+16"), (1e-7, "1.0e-07")]
)
def test_other_scalars(value: Any, text: str) -> None:
    (document,) = read_stream("[]")
    assert edit("[]", document, [Add((0,), value)]) == f"[{text}]"
    assert _same(json.loads(f"[{text}]"), [value])


@pytest.mark.parametrize("value", [math.inf, math.nan, {1: 2}, {"a": {3}}, [b""]])
def test_what_json_does_not_have(value: Any) -> None:
    (document,) = read_stream("a: 1\n")
    with pytest.raises(ValueError, match=r"JSON doesn't have"):
        edit("a: 1\n", document, [Add(("b",), value)])


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        ("a: &x {b: 1}\nc: *x\n", Add(("a", "d"), 1), r"line 1: a change here would change every \*x too"),
        ("a: &x {b: 1}\nc: *x\n", Replace(("a", "b"), 1), r"line 1: a change here would change every \*x too"),
        ("b:\n  a: &x 1\nc: *x\n", Remove(("b",)), r"line 2: a change here would change every \*x too"),
        ("a: &x {b: 1}\nc:\n  *x\n", Add(("c", "d"), 1), r"line 3: /c/d is reached by the alias \*x"),
        (
            "a: &x {b: [1]}\nc:\n  <<: *x\n",
            Add(("c", "b", 0), 1),
            r"line 3: /c/b/0 is there only by a merge key \(<<\)",
        ),
        ("---\na: 1\nb: 2\n\na:\n- 3\n", Add(("a", 0), 1), r"line 5: the key 'a' is there twice, the first in line 2"),
        ("x: 1\na: [b: 1]\n", Add(("a", 0, "c"), 1), r"line 2: a pair in a flow list without braces"),
        ("x: 1\n? a\n", Add(("a",), 1), r'line 2: a key without a ":"'),
        ("x: 1\na: |\n  b", Add(("c",), 1), r"line 2: this text block ends the file without a line break, .*"),
        ("---\n# c\n", Replace((), 1), r"line 1: the document is empty"),
        ("a: 1\nb: !x 2\n", Add(("c",), 1), r"line 2: the tag !x is not known"),
        ("--- a\n", Replace((), {"b": 1}), r"line 1: the document can't be edited in place: after .*"),
        ("a: |+\n  b\nc: 1\n\nd: 1\n", Remove(("c",)), r"line 1: .*: after the edit /a would read differently .*"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n  b: 2\n", Remove(("c", "b")), r"line 1: .*: after the edit /c would read .*"),
    ],
)
def test_what_can_not_be_edited(text: str, change: Change, message: str) -> None:
    (document,) = read_stream(text)
    with pytest.raises(CannotEdit, match=f"^{message}$"):
        edit(text, document, [change])


def test_a_wrong_edit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (document,) = read_stream("a: 1\nb: 2\n")
    monkeypatch.setattr(yaml_edit, "_NOT_TEXT", set())
    with pytest.raises(CannotEdit, match=r"^line 1: .*: after the edit /c/d/0 would read differently than it should$"):
        edit("a: 1\nb: 2\n", document, [Add(("c",), {"d": ["on"]})])
    monkeypatch.setattr(yaml_edit, "_CLEARLY_TEXT", re.compile(".*", re.DOTALL))
    with pytest.raises(CannotEdit, match=r"^line 1: .*: after the edit it would not be readable \(line 4, .*\)$"):
        edit("a: 1\nb: 2\n", document, [Add(("c",), "[")])
    with pytest.raises(CannotEdit, match=r"^line 1: .*: after the edit it would read differently than it should$"):
        edit("a: 1\nb: 2\n", document, [Add(("c",), "1\nd: 2")])
    with pytest.raises(CannotEdit, match=r"^line 1: .*: after the edit it would be 2 documents$"):
        edit("a: 1\nb: 2\n", document, [Add(("c",), "\n--- 1")])


def test_errors_of_the_caller() -> None:
    first, second = read_stream("a: 1\n---\nb: 1\n")
    with pytest.raises(ValueError, match=r"^there is no /b$"):
        edit("a: 1\n", first, [Remove(("b",))])
    with pytest.raises(ValueError, match=r"^this is not the document's text$"):
        edit("a: 1\n---\nb: 1\n", second, [Remove(("b",))])
    assert edit("---\nb: 1\n", second, []) == "---\nb: 1\n"


# ---- random documents


def _edited(own: str, document: yaml_edit.Document, changes: list[Change]) -> str | None:
    """None for the two known cases that can't be: a text block without an end, and blank lines that it keeps."""
    try:
        return edit(own, document, changes)
    except CannotEdit as error:
        if "text block ends the file" in str(error) or ("would read differently" in str(error) and "+" in own):
            return None
        raise


_RANDOM = st.randoms(use_true_random=True)


@settings(deadline=None)
@given(_RANDOM)
def test_random_documents_read_as_pyyaml_reads_them(rng: random.Random) -> None:
    text = _stream(rng)
    assert _same([data for _, _, data in _each(text)], list(yaml.load_all(text, Loader=_Plain)))


@settings(deadline=None)
@given(_RANDOM)
def test_random_changes(rng: random.Random) -> None:
    for own, document, data in _each(_stream(rng)):
        changes = _changes(rng, data, rng.choice([0.1, 0.4]))
        edited = _edited(own, document, changes)
        if edited is not None:
            assert _same(_oracle(edited), apply(data, changes))


@settings(deadline=None)
@given(_RANDOM)
def test_removing_what_was_added_gives_the_bytes_back(rng: random.Random) -> None:
    for own, document, data in _each(_stream(rng)):
        changes = _changes(rng, data, rng.choice([0.1, 0.4]), adds_only=True)
        edited = _edited(own, document, changes)
        if edited is not None:
            letters = iter(edited)
            assert all(letter in letters for letter in own), "something was taken away"
            assert edit(edited, read_stream(edited)[0], _inverse(changes)) == own


@settings(deadline=None)
@given(_RANDOM)
def test_adding_leaves_every_line(rng: random.Random) -> None:
    for own, document, data in _each(_stream(rng, flow=False, compact=False)):
        edited = _edited(own, document, _changes(rng, data, 0.3, adds_only=True))
        if edited is not None:
            lines = iter(edited.lstrip("\ufeff").splitlines())
            assert all(line in lines for line in own.lstrip("\ufeff").splitlines())


@settings(deadline=None)
@given(_RANDOM)
def test_json_stays_json_as_it_is_printed(rng: random.Random) -> None:
    data = {"a": _value(rng), "b": [_value(rng)]}
    indent = rng.choice([None, 1, 2, 4, "\t"])
    text = _printed(data, indent)
    (document,) = read_stream(text)
    changes = _changes(rng, to_data(document), 0.2)
    edited = edit(text, document, changes)
    assert _same(json.loads(edited), apply(to_data(document), changes))
    assert edited == _printed(apply(data, changes), indent)


def _printed(data: Any, indent: int | str | None) -> str:
    """Python's JSON, but for what yaml_edit escapes and how it writes 1e16."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    text = re.sub(r"[\x7f-\x9f\u2028\ufeff]", lambda match: f"\\u{ord(match[0]):04x}", text)
    return re.sub(r"(?<=[ \t\[])(-?1)(e[-+]\d\d)(?=[,\s\]}]|$)", r"\1.0\2", text)
