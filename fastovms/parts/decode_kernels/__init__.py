"""Decode kernels: fastovms's own kernels for steps of few tokens."""
