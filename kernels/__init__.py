"""Fused operations on tensors. Keep this file free of imports and of a version: see docs/adr/0001."""
