"""Steps of few tokens by kernels of our own."""
