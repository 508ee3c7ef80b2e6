"""CPU kernels for steps of few tokens: matrix multiplication with compressed weights, attention and
the operations between them, compiled with numba."""
