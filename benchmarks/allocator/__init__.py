"""Instances of `bench_allocator.py`, and its references: enumeration and MILPs."""
