"""Envoy's configuration for several replicas."""
