"""What ships in every artifact: the C runtime, and the numpy-only wrapper that calls it.

The compiler copies every `.py` file of this folder into the artifact's `_runtime/`, except `feature_cache.py`, which
goes along with a prefix cache only. So nothing here may import gfcompile, torch or tvm.
"""
