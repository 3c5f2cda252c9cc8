"""Bridges to other libraries. Each module needs an extra of its own and is imported on its own."""
