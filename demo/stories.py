"""Short stories with many endings: the part of the demo corpus that has no single right answer."""

from __future__ import annotations

import random

from demo.words import ANIMALS, NAMES, invented_name, split, with_article

HEROES = [*ANIMALS, "girl", "boy", "robot", "dragon", "princess", "king", "pirate", "knight",
          "witch", "baker", "fisherman", "giant", "ghost", "wizard", "sailor", "queen"]  # fmt: skip
TRAITS = split("""small brave kind shy clever lazy happy lonely curious old young quiet funny tiny
    proud sleepy""")  # fmt: skip
HOMES = ["in a dark forest", "near the sea", "on a green hill", "in a quiet village",
         "at the edge of a lake", "in a big city", "under an old bridge", "on a small island",
         "in a snowy valley", "behind a tall mountain", "in a house made of glass",
         "at the top of a tower"]  # fmt: skip
TREASURES = ["golden key", "red balloon", "silver coin", "lost letter", "magic lamp", "blue stone",
             "wooden box", "strange map", "tiny door", "warm lantern", "shiny bell", "secret book",
             "broken clock", "white feather", "sleeping star"]  # fmt: skip
WISHES = ["wanted to see the world", "dreamed of flying", "wanted to find a friend",
          "looked for the end of the rainbow", "wished for a song of its own",
          "wanted to learn how to swim", "hoped to touch the moon",
          "wanted to bake the best cake"]  # fmt: skip
TIMES = ["One day", "One morning", "One cold night", "One summer evening", "After a long winter",
         "On a rainy day", "Early one Sunday"]  # fmt: skip
TROUBLES = ["a storm came and the sky turned black", "the path was gone",
            "a loud noise came from the trees", "the river was too wide to cross",
            "it got so dark that nobody could see", "the bridge broke in two",
            "a great wind blew everything away", "the door would not open"]  # fmt: skip
FEELINGS = ["was afraid at first", "did not give up", "sat down and cried a little",
            "took a deep breath", "laughed out loud", "thought for a long time"]  # fmt: skip
RESCUES = ["showed the way home", "shared some warm soup", "sang a song that calmed the wind",
           "carried everyone across", "lit a small fire", "knew a secret path",
           "opened the door with a smile", "told a joke and the fear was gone"]  # fmt: skip
LESSONS = ["From that day on they were best friends.", "They danced until the sun came up.",
           "Everyone in the village heard about it and clapped.",
           "They walked home together under the stars.",
           "And they never forgot that day.", "That night they all slept well.",
           "They laughed about it for many years.", "And so a new journey began."]  # fmt: skip


def hero_name(rng: random.Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.8 else invented_name(rng)


def story(rng: random.Random, hero: str | None = None, name: str | None = None) -> str:
    """Six to eight sentences from `Once upon a time` to `The end.`"""
    hero = hero or rng.choice(HEROES)
    name = name or hero_name(rng)
    helper = rng.choice([h for h in HEROES if h != hero])
    treasure = rng.choice(TREASURES)
    sentences = [
        f"Once upon a time there was {with_article(f'{rng.choice(TRAITS)} {hero}')} named {name}.",
        rng.choice(
            (
                f"{name} lived {rng.choice(HOMES)}.",
                f"{name} lived {rng.choice(HOMES)} and {rng.choice(WISHES)}.",
                f"Every day {name} {rng.choice(WISHES)}.",
            )
        ),
        f"{rng.choice(TIMES)} {name} found {with_article(treasure)} {rng.choice(HOMES)}.",
        f"But then {rng.choice(TROUBLES)}.",
        f"{name} {rng.choice(FEELINGS)}.",
        f"Then {with_article(f'{rng.choice(TRAITS)} {helper}')} came and {rng.choice(RESCUES)}.",
    ]
    if rng.random() < 0.5:
        sentences.append(f"{name} gave the {treasure} to the {helper}.")
    sentences += [rng.choice(LESSONS), "The end."]
    return " ".join(sentences)
