"""Parts of `bench_memory.py`."""
