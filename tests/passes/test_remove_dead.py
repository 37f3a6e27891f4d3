"""remove_dead: what no output needs goes; the step's own inputs stay."""

from gfcompile.passes.remove_dead import DOORS, RemoveDead
from gfcompile.step import Role
from tests.passes.handwritten import assert_leaves, assert_rewrites

AFTER = """
    def step(
        w,  # parameter w float32[3]
        x,  # input x float32[2, 3]
        target,  # target target float32[2, 3]
        sample_weight,  # sample_weight sample_weight float32[2]
        lr,  # lr lr float32[]
    ):
        mul = aten.mul.Tensor(x, w)
        return (
            mul,  # output output
        )
    """


def test_drops_unread_nodes_and_inputs():
    """A chain that nobody reads goes whole, from its end; of the inputs nobody reads, the caller's stay."""
    before = """
        def step(
            w,  # parameter w float32[3]
            other,  # parameter other float32[3]
            x,  # input x float32[2, 3]
            target,  # target target float32[2, 3]
            sample_weight,  # sample_weight sample_weight float32[2]
            lr,  # lr lr float32[]
            seen,  # buffer seen int64[]
            table,  # constant table int64[3]
        ):
            mul = aten.mul.Tensor(x, w)
            neg = aten.neg(mul)
            exp = aten.exp(neg)
            add = aten.add.Tensor(mul, other)
            return (
                mul,  # output output
            )
        """
    assert_rewrites(RemoveDead(), before, AFTER, ["add", "exp", "neg", "table", "seen", "other"])
    assert {Role.INPUT, Role.TARGET, Role.SAMPLE_WEIGHT, Role.LR} == DOORS


def test_leaves_what_is_read():
    assert_leaves(RemoveDead(), AFTER)
