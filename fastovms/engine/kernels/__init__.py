"""Computes steps of few rows: matrix products with compressed weights, faster than OpenVINO's."""
