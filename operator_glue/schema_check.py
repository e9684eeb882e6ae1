"""A document against the CRD's structural schema, in the API server's words. Pure.

jsonschema walks document and schema; the keywords are what Kubernetes makes of them. Sources, of Kubernetes 1.34:
k8s.io/kube-openapi's pkg/validation (the sentences), k8s.io/apiextensions-apiserver's pkg/apiserver/validation and
pkg/apiserver/schema/{listtype,cel}. Keywords that no field of ours has are not here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema
import re2
from jsonschema.validators import create

from operator_glue.cel import CelError, broken
from operator_glue.faults import Fault, Path, Where, at, dotted, invalid, required, shown

_Errors = Iterator[jsonschema.ValidationError]


class _Error(jsonschema.ValidationError):
    """``body``: what follows the path, given the path. ``unchecked``: a rule that could not be evaluated.

    ``endless``: of a list so long that no rule should walk it.
    """

    def __init__(
        self,
        body: Callable[[str], str],
        path: Path = (),
        where: Where = Where.SCHEMA,
        *,
        unchecked: bool = False,
        endless: bool = False,
    ) -> None:
        super().__init__("", path=path)
        self.body, self.where, self.unchecked, self.endless = body, where, unchecked, endless


def schema_faults(document: Any, schema: Mapping[str, Any], *, is_wrong: bool = False) -> list[Fault]:
    """Everything that is wrong, in the document's order. ``is_wrong``: something else is, such as its metadata.

    The API server holds its CEL rules back while fields are of a wrong type or missing; here each rule that can be
    evaluated is.
    """
    errors = [error for error in _Bounds(schema).iter_errors(document) if isinstance(error, _Error)]
    if not any(error.endless for error in errors):
        errors += [error for error in _Rules(schema).iter_errors(document) if isinstance(error, _Error)]
    if is_wrong or not all(error.unchecked for error in errors):  # they read what is wrong, and that is said
        errors = [error for error in errors if not error.unchecked]
    errors.sort(key=lambda error: _place(document, tuple(error.absolute_path)))
    found = ((tuple(error.absolute_path), error) for error in errors)
    return list(dict.fromkeys(at(path, error.body(dotted(path)), error.where) for path, error in found))


def _place(document: Any, path: Path) -> tuple[int, ...]:
    """Where a path stands in the document; a missing field comes last in its map."""
    found = []
    for step in path:
        if isinstance(step, int):
            found.append(step)
            document = document[step] if isinstance(document, list) and step < len(document) else None
        else:
            keys = list(document) if isinstance(document, dict) else []
            found.append(keys.index(step) if step in keys else len(keys))
            document = document.get(step) if isinstance(document, dict) else None
    return tuple(found)


# ---- keywords


def _says(value: Any, text: str) -> Callable[[str], str]:
    """``text`` as a fault of ``value``; kube-openapi names the path once more."""
    return lambda path: invalid(value, f"{path} {text}")


def _wrong_type(instance: Any, wanted: str) -> Callable[[str], str]:
    name = _type_name(instance)
    return _says(name, f'in body must be of type {wanted}: "{name}"')


def _type_name(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _type(_: Any, wanted: str, instance: Any, __: Any) -> _Errors:
    if _type_name(instance) != wanted and not (wanted == "number" and _type_name(instance) == "integer"):
        yield _Error(_wrong_type(instance, wanted))


def _int_or_string(_: Any, __: Any, instance: Any, ___: Any) -> _Errors:
    if _type_name(instance) not in ("integer", "string"):
        yield _Error(_wrong_type(instance, "integer,string"))


def _properties(validator: Any, properties: Mapping[str, Any], instance: Any, _: Any) -> _Errors:
    if isinstance(instance, dict):
        for name, part in properties.items():
            if name in instance:
                yield from validator.descend(instance[name], part, path=name)


def _additional_properties(validator: Any, part: Any, instance: Any, schema: Mapping[str, Any]) -> _Errors:
    if isinstance(instance, dict) and isinstance(part, dict):
        for name, item in instance.items():
            if name not in schema.get("properties", {}):
                yield from validator.descend(item, part, path=name)


def _items(validator: Any, part: Any, instance: Any, _: Any) -> _Errors:
    if isinstance(instance, list):
        for index, item in enumerate(instance):
            yield from validator.descend(item, part, path=index)


def _required(_: Any, names: list[str], instance: Any, __: Any) -> _Errors:
    if isinstance(instance, dict):
        for name in names:
            if name not in instance:
                yield _Error(lambda _: required(), (name,))


def _enum(_: Any, values: list[Any], instance: Any, __: Any) -> _Errors:
    if instance not in values:
        supported = ", ".join(json.dumps(str(value)) for value in values)
        yield _Error(lambda _: f"Unsupported value: {shown(instance)}: supported values: {supported}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _minimum(_: Any, least: int, instance: Any, __: Any) -> _Errors:
    if _is_number(instance) and instance < least:
        yield _Error(_says(instance, f"in body should be greater than or equal to {least}"))


def _maximum(_: Any, most: int, instance: Any, __: Any) -> _Errors:
    if _is_number(instance) and instance > most:
        yield _Error(_says(instance, f"in body should be less than or equal to {most}"))


def _max_length(_: Any, most: int, instance: Any, __: Any) -> _Errors:
    if isinstance(instance, str) and len(instance) > most:
        yield _Error(lambda _: f"Too long: may not be more than {most} byte{'s' * (most != 1)}")


def _min_length(_: Any, least: int, instance: Any, __: Any) -> _Errors:
    if isinstance(instance, str) and len(instance) < least:
        yield _Error(_says(instance, f"in body should be at least {least} chars long"))


def _pattern(_: Any, pattern: str, instance: Any, schema: Mapping[str, Any]) -> _Errors:
    """Of a text of a wrong length nothing more is said."""
    if not isinstance(instance, str):
        return
    length = schema.get("minLength", 0) <= len(instance) <= schema.get("maxLength", len(instance))
    if length and not re2.search(pattern, instance):
        yield _Error(_says(instance, f"in body should match '{pattern}'"))


def _min_items(_: Any, least: int, instance: Any, __: Any) -> _Errors:
    if isinstance(instance, list) and len(instance) < least:
        yield _Error(_says(len(instance), f"in body should have at least {least} items"))


def _most(kind: type[list[Any]] | type[dict[str, Any]]) -> Callable[[Any, int, Any, Any], _Errors]:
    def check(_: Any, most: int, instance: Any, __: Any) -> _Errors:
        if isinstance(instance, kind) and len(instance) > most:
            text = f"Too many: {len(instance)}: must have at most {most} item{'s' * (most != 1)}"
            yield _Error(lambda _: text, endless=len(instance) > 2 * most)

    return check


def _list_type(_: Any, kind: str, instance: Any, schema: Mapping[str, Any]) -> _Errors:
    """Items that are there twice; the second of them is named, a third is not."""
    if not isinstance(instance, list) or kind == "atomic":
        return
    names = schema.get("x-kubernetes-list-map-keys", ())
    keys = list(instance)
    if kind == "map":
        for index, item in enumerate(instance):
            if item is not None and not isinstance(item, dict):
                yield _Error(_no_object(item), (index,))
                return
        keys = [{name: item[name] for name in names if name in item} for item in (part or {} for part in instance)]
    times: Counter[str] = Counter()
    for index, key in enumerate(keys):
        times[shown(key)] += 1
        if times[shown(key)] == 2:
            yield _Error(_duplicate(key), (index,))


def _no_object(item: Any) -> Callable[[str], str]:
    return lambda _: invalid(item, "must be an object for an array of list-type map")


def _duplicate(key: Any) -> Callable[[str], str]:
    return lambda _: f"Duplicate value: {shown(key)}"


def _rules(_: Any, rules: list[Mapping[str, str]], instance: Any, schema: Mapping[str, Any]) -> _Errors:
    if _type_name(instance) != schema.get("type"):
        return
    for rule in rules:
        path = tuple(rule["fieldPath"].removeprefix(".").split("."))
        try:
            message = broken(rule, instance)
        except CelError as error:
            text = f"{error} evaluating rule: {rule['message']}"
            yield _Error(_about_type(schema, text), (), Where.CEL, unchecked=True)
            continue
        if message is not None:
            yield _Error(_about_type(schema, message), path, Where.CEL)


def _about_type(schema: Mapping[str, Any], text: str) -> Callable[[str], str]:
    """The API server names a type in the place of a rule's value."""
    return lambda _: invalid(schema["type"], text)


_WALK = {"properties": _properties, "additionalProperties": _additional_properties, "items": _items}
_Rules = create(meta_schema={}, validators={**_WALK, "x-kubernetes-validations": _rules})
_Bounds = create(
    meta_schema={},
    validators={
        **_WALK,
        "type": _type,
        "x-kubernetes-int-or-string": _int_or_string,
        "required": _required,
        "enum": _enum,
        "minimum": _minimum,
        "maximum": _maximum,
        "minLength": _min_length,
        "maxLength": _max_length,
        "pattern": _pattern,
        "minItems": _min_items,
        "maxItems": _most(list),
        "maxProperties": _most(dict),
        "x-kubernetes-list-type": _list_type,
    },
)
#: Keywords that are looked at elsewhere (operator_glue.structural), beside another one, or not by the API server.
LEFT_OUT = frozenset(
    {"description", "default", "anyOf", "format", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"}
)
KEYWORDS = frozenset({*_Bounds.VALIDATORS, *_Rules.VALIDATORS})
