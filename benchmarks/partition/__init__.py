"""What `bench_partition.py` cuts, and the brute force that it compares with."""
