"""Two games, one after the other, with stable-baselines3: an agent that goes on where it was when a game comes back."""

from __future__ import annotations

from importlib.util import find_spec


def main() -> None:
    """Catch a ball that falls, then one that rises, and meet the first game again."""
    from stable_baselines3 import PPO

    from hashroute.integrations.sb3 import ForestExtractor
    from hashroute.integrations.sb3_tasks import ForestTasks
    from hashroute.rl.sequences import Games

    games = Games("catch")  # environments of Gymnasium with images of one shape; yours work, too
    policy = dict(features_extractor_class=ForestExtractor, net_arch=[])
    agent = PPO(
        "MlpPolicy", games.open("catch", 8), n_steps=64, batch_size=128, policy_kwargs=policy, seed=0, device="cpu"
    )
    tasks = ForestTasks(agent)
    for name in ("catch", "rise", "catch"):
        entered = tasks.enter(games.open(name, 8))  # looks at the game: it goes on with a task, or starts one
        what = "goes on with" if entered.known else "starts"
        print(f"{name}: the agent {what} task {entered.task}")
        agent.learn(1024)
    agent.save("agent")  # with the paths and heads of all tasks
    loaded = PPO.load("agent", device="cpu")
    print(f"loaded: {len(ForestTasks(loaded))} tasks")


if __name__ == "__main__":
    if find_spec("stable_baselines3") is None:
        print("this example needs stable-baselines3: pip install 'hashroute[sb3]'")
    else:
        main()
