"""A network's depth must not become Python's: who calls itself is listed here, with what bounds its depth.

Found in the source: functions that reach themselves by name, through `self`, or through what they import from each
other, in lambdas and `map` too. Calls of another object's methods are not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

import gfcompile

ROOT = Path(gfcompile.__file__).parent
NESTED = "lists within the arguments of one call"
BLOCKS = "branches within branches of an .onnx file, of which protobuf reads 100"
REGIONS = "regions within regions of a .pt2 file's JSON, which the parser bounds"
PARSED = "brackets within brackets of one line, of which Python's parser reads 200"
SCHEMA = "parts within parts of a report, as its dataclasses nest"
KERNEL = "the expression or the loops of one kernel"
ALLOWED = {
    "codegen.driver._Function._place": "one step: a result lies where the state does that it replaces",
    "codegen.schedules.blocks._evaluate": KERNEL,
    "frontend.exported.graph.GraphReader._argument_of": "a list is made of its parts, which are no lists",
    "frontend.exported.graph.GraphReader._read_node": REGIONS,
    "frontend.exported.graph.GraphReader._read_region": REGIONS,
    "frontend.exported.graph._fill": "its own count",
    "frontend.exported.graph._fits": "lists within the type of one argument",
    "frontend.losses.main_output": "structures within the model's output",
    "frontend.losses.resolve_loss": "one step: a name with its settings",
    "frontend.onnx.graph._block": BLOCKS,
    "frontend.onnx.graph._node": BLOCKS,
    "frontend.onnx.graph.all_nodes": BLOCKS,
    "frontend.onnx.graph.reads": BLOCKS,
    "frontend.onnx.module.OnnxModule._run": BLOCKS,
    "frontend.onnx.read.graphs_in": BLOCKS,
    "frontend.onnx.weights._check_block": BLOCKS,
    "frontend.onnx.weights._follow": BLOCKS,
    "export.functions._formal": NESTED,
    "export.functions.tensors_of": NESTED,
    "export.writer.GraphWriter._decomposed": "one operator in PyTorch's decompositions, which end at core ATen",
    "export.writer.GraphWriter._translated": "one operator in PyTorch's decompositions, which end at core ATen",
    "frontend.narrow._kind": "results within the result of one call",
    "graph.shapes._kinds": NESTED,
    "graph.text._argument": NESTED,
    "graph.text_facts._fits": "lists within the type of one field",
    "graph.text_reader._Reader._argument": PARSED,
    "graph.text_reader._read_constant": PARSED,
    "passes.contract._kind": "results within the result of one call",
    "report.json_form._read": SCHEMA,
    "report.json_form._read_any": SCHEMA,
    "report.json_form._read_part": SCHEMA,
    "report.json_form._written": SCHEMA,
    "report.json_form.as_data": SCHEMA,
    "optimizers._plain": "lists within a setting",
    "optimizers._tupled": "lists within a setting",
    "passes.clip_gradients._on_value": "one step: what is spread was drawn once",
    "passes.linear_forms._frozen": NESTED,
    "targets.spec.read_target": "aliases, which name targets that are shipped",
    "tuning.gpu_model._Counter.visit": KERNEL,
    "tuning.gpu_model._evaluate": KERNEL,
    "tuning.gpu_model._variables": KERNEL,
    "tuning.ranking._Judge.judge": "halves of some hundred candidates",
    "tuning.space._draw_open": "one step: the algorithm of an open convolution is a kernel that is not",
    "tuning.space.draw": "one step: the algorithm of an open convolution is a kernel that is not",
}


def functions(text: str, module: str) -> Iterator[tuple[str, ast.AST, dict[str, str]]]:
    """Each function's name, its body, and what the names that it sees stand for; `self.f` is a name as well."""
    tree = ast.parse(text)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gfcompile"):
            origin = (node.module or "").removeprefix("gfcompile").lstrip(".")
            known |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
    yield from _inside(tree, module, known)


def _inside(scope: ast.AST, path: str, known: dict[str, str]) -> Iterator[tuple[str, ast.AST, dict[str, str]]]:
    own = [node for node in _statements(scope) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    if isinstance(scope, ast.FunctionDef):
        arguments = {node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg)}
        stored = {
            node.id for node in _statements(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        known = {name: meant for name, meant in known.items() if name not in arguments | stored}
    for node in own:
        is_property = isinstance(node, ast.FunctionDef) and "property" in map(ast.unparse, node.decorator_list)
        if isinstance(scope, ast.ClassDef) and not is_property:
            known[f"self.{node.name}"] = f"{path}.{node.name}"
        elif not isinstance(scope, ast.ClassDef):
            known[node.name] = f"{path}.{node.name}"
    if isinstance(scope, ast.FunctionDef):
        yield path, scope, known
    for node in own:
        yield from _inside(node, f"{path}.{node.name}", dict(known))


def _statements(scope: ast.AST) -> Iterator[ast.AST]:
    """All below it, except what stands in functions and classes of its own."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _statements(node)


def calls(function: ast.AST, known: dict[str, str]) -> Iterator[str]:
    """What a function names, itself or in a lambda."""
    for node in _statements(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in known:
            yield known[node.id]
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
            and f"self.{node.attr}" in known
        ):
            yield known[f"self.{node.attr}"]


def find_recursive(sources: dict[str, str]) -> set[str]:
    """Functions of these modules, given by name and text, that can reach themselves."""
    graph = networkx.DiGraph()
    for module, text in sources.items():
        for name, body, known in functions(text, module):
            graph.add_edges_from((name, called) for called in calls(body, known))
    loops = networkx.strongly_connected_components(graph)
    return {name for loop in loops for name in loop if len(loop) > 1 or graph.has_edge(name, name)}


@pytest.mark.slow
def test_what_recurses_is_listed_with_its_bound():
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text() for path in sorted(ROOT.rglob("*.py"))
    }
    found = find_recursive(sources)
    assert sorted(found - ALLOWED.keys()) == [], "give it a worklist, or list it with what bounds its depth"
    assert sorted(ALLOWED.keys() - found) == [], "no longer recurses: take it off the list"


def test_recursion_is_found():
    one = """
from gfcompile.two import back

def direct(node):
    return any(map(direct, node.args))

def outer(node):
    def inner(arg):
        return arg or (lambda: inner(arg.next))()
    return inner(node)

def there(node):
    return back(node)

class Walk:
    def visit(self, node):
        return self.rest(node)

    def rest(self, node):
        return [self.visit(arg) for arg in node.args]

    def total(self):
        return sum(part.total() for part in self.parts)

def plain(node):
    return direct(node)

def named(node):
    def named(arg):
        return arg
    return named

def argument(argument):
    return argument(1)
"""
    two = "from gfcompile.one import there\n\ndef back(node):\n    return there(node)\n"
    assert find_recursive({"one": one, "two": two}) == {
        "one.direct", "one.outer.inner", "one.there", "two.back", "one.Walk.visit", "one.Walk.rest",
    }  # fmt: skip
