"""Neural modules: no files, no tasks."""
