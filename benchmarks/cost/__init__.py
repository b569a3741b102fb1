"""What `bench_cost.py` compares the cost model with: what torch counts and keeps."""
