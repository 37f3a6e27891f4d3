"""What the benchmark page says before its tables."""

INTRODUCTION = """
All times are *measured*: every peer in a process of its own, all ready before the first turn, then in turn, round
after round. A turn is a block of runs that fills a tenth of a second (one run at least). Its first run comes after the
others used the caches: *cold*. The median of the following ones is *warm* (of a block of one run, that run is both).
Ratios are of the medians over all rounds, warm unless said otherwise; the spread is that of the ratios within each
round: quartiles from five rounds on, the whole range below. On a machine whose speed moves, the ratio of medians can
lie a little beside it.

These are ratios on a shared virtual machine whose speed moves from minute to minute. They compare what ran side by
side; the milliseconds are no promise for any machine, this one included.
""".strip()

SHAPES = """
3x3, stride 1, batch {batch}; channels@HxW. Against the better of NCHW and channels last, exact
(`aten.convolution_backward`) and published filter. Ours gets the patch sums that the forward pass leaves.
Milliseconds, then times faster: than exact (spread), the same cold, than the published filter.

The limit is the roofline by the machine's rate and bandwidth, measured beside each shape. *As one*: the longer of all
arithmetic and all traffic of the operation, as if one kernel did everything at once. *By phase*: the sum of the limits
of patch mean, channel mix, spread (where it is done) and weight gradient, each with its operands read and written
once: the best that kernels can do which run one after another. A phase whose operands are still in a cache can beat it.
""".strip()

STEPS = """
Forward, loss, backward and SGD update of the last 4 convolutions and the classifier, r=2, cross entropy; images of
224x224, MCUNet-like 176x176, DeepLabV3-like 256x256. In multiples of gfcompile's filtered step, with the spread: above
1 is slower than ours. *filter* is the published operator in PyTorch.
""".strip()

GROWTH = """
{model}, batch {batch}, {size}x{size}, last {layers} layers, r={r}, one of these changed at a time; against the best of
PyTorch's variants without torch.compile.
""".strip()

FORWARD = "In multiples of gfcompile's forward pass, with the spread: above 1 is slower than ours."

COMPILE = """
Of the steps above, from the model in memory to the finished artifact, while another peer made ready on the other core:
alone it takes less. The library holds the code and no weights; the artifact adds those, graphs and reports.
""".strip()

MEMORY = """
Peak of one step, r=2. Ours is *counted* from the plan, PyTorch's *measured* from its allocator's log, the better of
NCHW and channels last; weights, optimizer state and the batch are outside. `make bench-memory` has more rows.
""".strip()

KERNELS = """
`python -m benchmarks.profile`: the filtered step, each kernel's clock read inside the library. A kernel's limit is the
longer of its arithmetic at the measured peak rate and its operands, read and written once, at the measured bandwidth;
operands that are still in a cache can take it beyond 100 %.
""".strip()
