"""Names, labels and annotations as the API server takes them on any object. Pure.

Sources: k8s.io/apimachinery's pkg/api/validation/objectmeta.go and pkg/util/validation, of Kubernetes 1.34.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import re2

from operator_glue.faults import Fault, Path, at, invalid, required

_FIELDS = """
    annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName generation
    labels managedFields name namespace ownerReferences resourceVersion selfLink uid
"""
#: Fields of ObjectMeta; another one is refused as unknown.
FIELDS = frozenset(_FIELDS.split())

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME_PART = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = f"({_NAME_PART})?"

_SUBDOMAIN_SAYS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_NAME_PART_SAYS = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    f"character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME_PART}')"
)
_VALUE_SAYS = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'{_VALUE}')"
)
_MAX_NAME, _MAX_LABEL, _MAX_ANNOTATIONS_BYTES = 253, 63, 256 * 1024


def metadata_faults(metadata: Any) -> Iterator[Fault]:
    """What is wrong with an object's metadata."""
    path: Path = ("metadata",)
    if not isinstance(metadata, Mapping):
        yield at((*path, "name"), required("name or generateName is required"))
        return
    for field in ("name", "generateName", "namespace"):
        value = metadata.get(field)
        if value is not None and not isinstance(value, str):
            yield at((*path, field), invalid(value, "must be a string"))
    name, prefix = metadata.get("name") or "", metadata.get("generateName") or ""
    if not name and not prefix:
        yield at((*path, "name"), required("name or generateName is required"))
    if isinstance(prefix, str) and prefix:  # its end may be a dash, which more is put behind
        yield from _name_faults(
            (*path, "generateName"), prefix, prefix[:-2] + "a" if prefix[1:].endswith("-") else prefix
        )
    if isinstance(name, str) and name:
        yield from _name_faults((*path, "name"), name, name)
    yield from labels_faults((*path, "labels"), metadata.get("labels"))
    yield from annotations_faults((*path, "annotations"), metadata.get("annotations"))


def labels_faults(path: Path, labels: Any) -> Iterator[Fault]:
    """What is wrong with labels."""
    for key, value in _texts(labels):
        yield from keys_faults(path, key)
        if len(value) > _MAX_LABEL:
            yield at(path, invalid(value, f"must be no more than {_MAX_LABEL} bytes"))
        if not re2.fullmatch(_VALUE, value):
            yield at(path, invalid(value, _VALUE_SAYS))
    yield from _not_texts(path, labels)


def annotations_faults(path: Path, annotations: Any) -> Iterator[Fault]:
    """What is wrong with annotations."""
    size = 0
    for key, value in _texts(annotations):
        yield from keys_faults(path, key.lower(), key)
        size += len(key.encode()) + len(value.encode())
    if size > _MAX_ANNOTATIONS_BYTES:
        yield at(path, f"Too long: may not be more than {_MAX_ANNOTATIONS_BYTES} bytes")
    yield from _not_texts(path, annotations)


def keys_faults(path: Path, key: str, written: str | None = None) -> Iterator[Fault]:
    """What is wrong with a label's key (a qualified name). ``written``: as the user wrote it."""
    written = key if written is None else written
    prefix, slash, name = key.rpartition("/")
    if key.count("/") > 1:
        says = "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
        says += "an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
        says += f"'{_NAME_PART}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        yield at(path, invalid(written, says))
        return
    if slash and not prefix:
        yield at(path, invalid(written, "prefix part must be non-empty"))
    elif slash and not re2.fullmatch(_SUBDOMAIN, prefix):
        yield at(path, invalid(written, f"prefix part {_SUBDOMAIN_SAYS}"))
    if not name:
        yield at(path, invalid(written, "name part must be non-empty"))
    elif len(name) > _MAX_LABEL:
        yield at(path, invalid(written, f"name part must be no more than {_MAX_LABEL} bytes"))
    if not re2.fullmatch(_NAME_PART, name):
        yield at(path, invalid(written, _NAME_PART_SAYS))


def _name_faults(path: Path, written: str, name: str) -> Iterator[Fault]:
    if len(name) > _MAX_NAME:
        yield at(path, invalid(written, f"must be no more than {_MAX_NAME} bytes"))
    if not re2.fullmatch(_SUBDOMAIN, name):
        yield at(path, invalid(written, _SUBDOMAIN_SAYS))


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        yield from ((key, item) for key, item in value.items() if isinstance(key, str) and isinstance(item, str))


def _not_texts(path: Path, value: Any) -> Iterator[Fault]:
    """The API server cannot even read these, and names no field: said here in the words of a wrong type."""
    if value is not None and not isinstance(value, Mapping):
        yield at(path, invalid(value, "must be a map of strings"))
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(item, str):
            yield at((*path, str(key)), invalid(item, "must be a string"))
