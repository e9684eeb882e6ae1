"""Every shape renders to the bytes that are beside it."""

from __future__ import annotations

import os

import pytest
import yaml
from golden_files import FOLDER, Shape, as_text, rendered, shapes

from operator_glue.admission import validate


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_a_shape_renders_as_it_did(shape: Shape) -> None:
    text = as_text(shape.name, rendered(shape))
    if os.environ.get("DRAINAGENT_WRITE_GOLDEN"):
        shape.rendered.write_text(text)
    assert text == shape.rendered.read_text()


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_a_shape_is_admitted(shape: Shape) -> None:
    assert validate(yaml.safe_load((FOLDER / f"{shape}.yaml").read_text())) == ()


def test_every_golden_file_has_its_input() -> None:
    left = {path.name.removesuffix(".rendered.yaml") for path in FOLDER.glob("*.rendered.yaml")}
    assert left == {shape.name for shape in shapes()}
