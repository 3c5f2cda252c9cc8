"""The model that people keep: one folder that learns, answers, undoes and forgets."""
