"""What `bench_packing.py` measures, one part a file: rows of plain data, and bars over them."""
