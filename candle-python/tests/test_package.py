"""The package around the library: types, guide and example."""

import ast
import inspect
import io
import os
import re
import runpy
import sys
import unittest
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

from support import ROOT

import candle_models
from candle_models import _native

# What every class has.
OF_ALL = {"__doc__", "__module__", "__new__"}


class Package(unittest.TestCase):
    def test_the_types_are_those_of_the_library(self):
        stub = ast.parse(Path(candle_models.__file__).with_name("_native.pyi").read_text())
        classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
        values = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign) and not node.target.id.startswith("_")}
        public = {name for name in vars(_native) if not name.startswith("_")}
        self.assertEqual(classes.keys() | values, public)
        for name, node in classes.items():
            found = getattr(_native, name)
            members = {member.name: member for member in node.body}
            self.assertEqual(members.keys() - OF_ALL, vars(found).keys() - OF_ALL, name)
            if "__new__" in members:
                self.compare(name, members["__new__"].args, inspect.signature(found))
            for member in members.keys() - OF_ALL:
                if members[member].decorator_list:
                    self.assertTrue(inspect.isdatadescriptor(vars(found)[member]), f"{name}.{member}")
                else:
                    self.compare(f"{name}.{member}", members[member].args, inspect.signature(getattr(found, member)))

    def compare(self, what: str, stub: ast.arguments, found: inspect.Signature) -> None:
        defaults = [None] * (len(stub.args) - len(stub.defaults)) + stub.defaults
        wanted = [(arg.arg, "POSITIONAL_OR_KEYWORD", default) for arg, default in zip(stub.args, defaults, strict=True)]
        wanted += [(stub.vararg.arg, "VAR_POSITIONAL", None)] if stub.vararg else []
        wanted += [(arg.arg, "KEYWORD_ONLY", default) for arg, default in zip(stub.kwonlyargs, stub.kw_defaults, strict=True)]
        value = lambda default: inspect.Parameter.empty if default is None else ast.literal_eval(default)  # noqa: E731
        wanted = [(name, kind, value(default)) for name, kind, default in wanted if name not in ("self", "cls")]
        there = [(p.name, p.kind.name, p.default) for p in found.parameters.values() if p.name != "self"]
        self.assertEqual(there, wanted, what)

    def test_everything_that_is_exported_is_there_and_documented(self):
        self.assertEqual(candle_models.__all__, sorted(candle_models.__all__))
        for name in candle_models.__all__:
            self.assertTrue(getattr(candle_models, name).__doc__, name)
        for kind in [candle_models.Bundle, candle_models.Engine, candle_models.Session, candle_models.Runner]:
            for name, member in vars(kind).items():
                self.assertTrue(name.startswith("_") or member.__doc__, f"{kind.__name__}.{name}")

    def test_the_options_are_those_of_an_engine(self):
        parameters = inspect.signature(candle_models.Bundle.engine).parameters.keys() - {"self"}
        self.assertEqual(candle_models.Options.__annotations__.keys(), parameters)

    def test_the_guide_runs(self):
        text = (ROOT / "docs" / "src" / "python.md").read_text()
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        self.assertGreater(len(blocks), 3)
        before = Path.cwd()
        os.chdir(ROOT)
        self.addCleanup(os.chdir, before)
        names: dict[str, object] = {}
        with redirect_stdout(io.StringIO()):
            for block in blocks:
                exec(compile(block, "docs/src/python.md", "exec"), names)

    def test_the_example_runs(self):
        path = ROOT / "candle-python" / "examples" / "gymnasium_agent.py"
        with redirect_stdout(io.StringIO()) as output, mock.patch.object(sys, "argv", [str(path), str(ROOT / "weights" / "policy-mlp"), "2"]):
            runpy.run_path(str(path), run_name="__main__")
        self.assertRegex(output.getvalue(), r"^episode 0: \d+ frames, return -?\d+\.\d+\nepisode 1: ")


if __name__ == "__main__":
    unittest.main()
