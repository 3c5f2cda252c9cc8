"""What tells games apart: divergences of what is seen at random actions, by four descriptions of images.

usage: python experiments/game_memories.py      (needs the extra sb3, and minatar)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from stable_baselines3.common.utils import set_random_seed
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from hashroute.integrations.sb3_tasks import RECOGNISED, look
from hashroute.nn.gaussian import GaussianMemories, edges
from hashroute.nn.hashing import EvenHash, FeatureHash
from hashroute.rl.sequences import Games
from hashroute.storage import write_json

RESULT = Path(__file__).parent / "results" / "game_memories.json"
GAMES = [f"MinAtar/{name}-v1" for name in ("Breakout", "SpaceInvaders", "Freeway", "Asterix", "Seaquest")]
STEPS, LOOKS = 1000, 4


def on_grid(images: Tensor) -> Tensor:
    """Square roots of channel means on a 4 x 4 grid, as `ForestExtractor` describes images."""
    return EvenHash(256, 1).normalised(adaptive_avg_pool2d(images, 4).sqrt())


DESCRIPTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "edges, 1,000 numbers": lambda images: FeatureHash(1000, 1).normalised(edges(images)),
    "pixels, 1,000 numbers": lambda images: EvenHash(1000, 1).normalised(images),
    "pixels, 256 numbers": lambda images: EvenHash(256, 1).normalised(images),
    "channels on a grid, 256 numbers": on_grid,
}


def main() -> None:
    """Write a memory of the first look at each game, and compare all later looks with all memories."""
    torch.set_num_threads(1)
    games = Games(",".join(GAMES))
    looks: list[list[Tensor]] = []
    for game, name in enumerate(games.games):
        env = games.open(name, 8)
        looks.append([])
        for number in range(LOOKS):
            seed = 100 * game + number
            set_random_seed(seed)
            env.seed(seed)
            looks[-1].append(torch.from_numpy(look(env, STEPS)).float().movedim(-1, 1))
    rows = []
    for name, describe in DESCRIPTIONS.items():
        memories = GaussianMemories(describe(looks[0][0][:1]).shape[1], 24)
        for first, *_ in looks:
            hashed = describe(first)
            held_out = torch.arange(len(hashed)) % 5 == 4
            memories.write(hashed[~held_out], hashed[held_out])
        same, others = [], []
        for game, (_, *later) in enumerate(looks):
            for seen in later:
                distances = (memories.divergence(describe(seen)) / memories.means.shape[1]).tolist()
                same.append(distances.pop(game))
                others += distances
        rows.append({"description": name, "same": max(same), "others": min(others)})
        print(rows[-1], flush=True)
    command = "python experiments/game_memories.py"
    facts = {"games": GAMES, "steps": STEPS, "looks": LOOKS - 1, "limit": RECOGNISED}
    write_json(RESULT, {"command": command, **facts, "rows": rows})


if __name__ == "__main__":
    main()
