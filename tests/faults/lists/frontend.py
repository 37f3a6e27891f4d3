"""Loaders that must not trust their files, imported and exported operators."""

from tests.faults.fault import Fault

UNPICKLE = "tests/frontend/test_unpickle.py"
PT2 = "tests/frontend/test_pt2.py"
OPERATORS = "tests/frontend/test_onnx_operators.py"
ATEN = "tests/export/test_aten.py"
GF = "tests/export/test_gf.py"
DIFFERENTIATE = "tests/frontend/test_differentiate.py"

FAULTS = (
    Fault(
        "buffers-keep-their-values",
        "gfcompile/frontend/differentiate.py",
        "isinstance(value, Tensor) and torch._functionalize_has_data_mutation(value)",
        "False",
        "a buffer that the forward pass changes is not a result of the step",
        (DIFFERENTIATE,),
    ),
    Fault(
        "frozen-weights-may-change",
        "gfcompile/frontend/differentiate.py",
        "if spec.kind not in (InputKind.BUFFER, InputKind.USER_INPUT):",
        "if spec.kind is InputKind.CONSTANT_TENSOR:",
        "a forward pass that changes a parameter in place is compiled as if it did not",
        (DIFFERENTIATE,),
    ),
    Fault(
        "class-of-any-module",
        "gfcompile/frontend/pickled/names.py",
        "if not (is_enum or is_module_class(found)) or not self._may_define(found.__module__):",
        "if not (is_enum or is_module_class(found)):",
        "a pickle may make a class that another module has only imported",
        (UNPICKLE,),
    ),
    Fault(
        "new-with-arguments",
        "gfcompile/frontend/pickled/unpickler.py",
        "if not isinstance(made, ModuleClass) or arguments != ():",
        "if not isinstance(made, ModuleClass):",
        "a pickle may make a module with arguments of its own",
        (UNPICKLE,),
    ),
    Fault(
        "group-norm-not-asked",
        "gfcompile/frontend/exported/guards.py",
        '    "native_group_norm": _check_groups,\n',
        "",
        "an exported program reads past a tensor by way of a group norm",
        (f"{PT2}::test_operators_that_trust_their_arguments_are_asked_first",),
    ),
    Fault(
        "memory-out-of-nothing",
        "gfcompile/frontend/exported/guards.py",
        "if not isinstance(count, Tensor) and count > LARGEST:",
        "if not isinstance(count, Tensor) and count > LARGEST**2:",
        "an exported program may ask for any amount of memory",
        (f"{PT2}::test_operators_that_trust_their_arguments_are_asked_first", PT2),
    ),
    Fault(
        "onnx-hard-sigmoid-default",
        "gfcompile/frontend/onnx/operators/activations.py",
        'node.get("alpha", 0.2), node.get("beta", 0.5)',
        'node.get("alpha", 1 / 6), node.get("beta", 0.5)',
        "a HardSigmoid without attributes has PyTorch's slope",
        (OPERATORS,),
    ),
    Fault(
        "onnx-average-counts-padding",
        "gfcompile/frontend/onnx/operators/pooling.py",
        'bool(node.get("count_include_pad", 0))',
        'bool(node.get("count_include_pad", 1))',
        "an AveragePool without the attribute counts its padding",
        (OPERATORS,),
    ),
    Fault(
        "onnx-same-upper-is-lower",
        "gfcompile/frontend/onnx/windows.py",
        '(less, total - less) if auto != "SAME_LOWER"',
        '(less, total - less) if auto == "SAME_LOWER"',
        "the odd row of SAME padding is on the other side",
        (OPERATORS,),
    ),
    Fault(
        "export-difference-turned",
        "gfcompile/export/aten/pointwise.py",
        "return str(TABLE[aten.sub.Tensor](to, out, b, a, alpha))",
        "return str(TABLE[aten.sub.Tensor](to, out, a, b, alpha))",
        "an exported rsub subtracts the wrong way round",
        (ATEN,),
    ),
    Fault(
        "export-or-equal-lost",
        "gfcompile/export/aten/pointwise.py",
        "return lambda to, _, a, b: _compare(to, kind, a, b)",
        'return lambda to, _, a, b: _compare(to, kind.removesuffix("OrEqual"), a, b)',
        "an exported comparison is false where both sides are equal",
        (ATEN,),
    ),
    Fault(
        "export-mean-over-whole-patches",
        "gfcompile/export/gf/patches.py",
        'return to.op("Div", sums(to, x, patches), np.maximum(patches.area, 1))',
        'return to.op("Div", sums(to, x, patches), patches.area.max())',
        "an exported patch mean divides by pixels outside the map",
        (GF,),
    ),
)
