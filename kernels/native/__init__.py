"""kernels/native: the CPU library, written in C (source/): whole forward passes over quantised weights."""
