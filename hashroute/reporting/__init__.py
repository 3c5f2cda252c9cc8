"""Tables and figures of result files."""
