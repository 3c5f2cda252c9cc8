"""Environment steps per second of learners on games, in turns within one process, beside a plain network of that size.

usage: python benchmarks/rl_speed.py      (needs the extra sb3, and minatar)
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median

import torch

from hashroute.rl.names import SEQUENCES
from hashroute.rl.players import ENVS, PLAYERS
from hashroute.rl.sequences import Games
from hashroute.storage import write_json

RESULT = Path(__file__).parent / "results" / "rl_speed.json"
ROUNDS, STEPS, GAME = 5, 1024, SEQUENCES["minatar"].tasks[0]


def main() -> None:
    """Train agents in turns; the median over rounds of each one's time, and of its ratio to that of `vc`."""
    torch.set_num_threads(1)
    games = Games("minatar")
    names = ("vc", "hrn", "hrn-paper")
    rows, agents = [], {}
    for name in names:
        agents[name], _ = PLAYERS[name]("ppo", 0).enter(games.open(GAME, ENVS), 0, 0)
        agents[name].learn(STEPS)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            start = time.process_time()
            agents[name].learn(STEPS, reset_num_timesteps=False)
            times[name].append(time.process_time() - start)
    for name in names:
        ratio = median(plain / own for plain, own in zip(times["vc"], times[name], strict=True))
        rows.append({"agent": "ppo", "learner": name, "steps_per_second": STEPS / median(times[name]), "ratio": ratio})
        print(json.dumps(rows[-1]), flush=True)
    write_json(RESULT, {"command": "python benchmarks/rl_speed.py", "game": GAME, "rounds": ROUNDS, "rows": rows})


if __name__ == "__main__":
    main()
