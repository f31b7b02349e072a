"""Other engines beside ours: each in a process of its own, all asked in the same words. See benchmarks/peers.py."""
