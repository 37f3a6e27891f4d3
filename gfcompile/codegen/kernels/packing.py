"""The packed weight layout: output channels in blocks of `kb` lanes, the block innermost."""


def block_size(co: int, groups: int = 1) -> int:
    """Lanes in one block of packed output channels.

    Divides `co // groups`, so one block never straddles two groups: 16, else 8, else the largest divisor up to 16.
    """
    channels = co // groups
    for size in (16, 8, *range(15, 0, -1)):
        if channels % size == 0:
            return size
    return 1
