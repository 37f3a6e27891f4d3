"""Read by every Python that a board of the tests starts: it has no PyTorch, which TVM would import for seconds."""

import sys

sys.modules["torch"] = None  # type: ignore[assignment]
