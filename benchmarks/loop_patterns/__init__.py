"""The training loops of benchmarks/loops.py, the references they are held against, and the processes that run them."""
