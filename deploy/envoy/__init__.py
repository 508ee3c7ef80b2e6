"""The configuration of Envoy before replicas."""
