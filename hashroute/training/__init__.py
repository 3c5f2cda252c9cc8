"""Runs: a learner goes through a scenario, alone or in a sweep of many."""
