"""Sequences of environments, learned one after another by agents of stable-baselines3."""
