"""What `bench_allocator.py` allocates, and the brute force and the MILPs that it compares with."""
