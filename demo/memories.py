"""Things the user tells about themselves, and later questions that ask for them."""

from __future__ import annotations

import random
from typing import NamedTuple

from demo import turns, words


class Memory(NamedTuple):
    """Something the user tells, and a later question that asks for it."""

    told: str
    reply: str
    asked: str
    answer: str
    key: str


MEMORIES = (
    (turns.INTRODUCTIONS, "Hello {0}! How can I help you today?",
     ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?"),
     "Your name is {0}.", words.a_name),
    (("My favorite color is {0}.",), "I will remember that.",
     ("What is my favorite color?", "Which color do I like?"), "Your favorite color is {0}.",
     lambda rng: rng.choice(words.COLORS)),
    (("I live in {0}.",), "I will remember that.",
     ("Where do I live?", "In which city do I live?", "What city do I live in?"),
     "You live in {0}.", words.a_city),
    (("My favorite number is {0}.",), "I will remember that.",
     ("What is my favorite number?", "Which number do I like?"), "Your favorite number is {0}.",
     lambda rng: str(rng.randrange(100))),
    (("I am {0} years old.",), "I will remember that.", ("How old am I?", "What is my age?"),
     "You are {0} years old.", lambda rng: str(rng.randint(3, 99))),
    (("I have a {0}.",), "I will remember that.",
     ("Which animal do I have?", "What pet do I have?"),
     "You have a {0}.", lambda rng: rng.choice(words.ANIMALS)),
    (("Remember the word {0}.",), "I will remember that.",
     ("What was the word?", "Which word did I ask you to remember?", "What is the word?",
      "What word did I tell you?"), "The word is {0}.", words.invented_word),
    (("Remember the number {0}.",), "I will remember that.",
     ("What was the number?", "Which number did I ask you to remember?", "What is the number?",
      "What number did I tell you?"), "The number is {0}.", lambda rng: str(rng.randrange(1000))),
    (("My secret code is {0}.",), "I will remember that.",
     ("What is my secret code?", "What was my code?"), "Your secret code is {0}.",
     lambda rng: str(rng.randrange(10000))),
)  # fmt: skip


def memory(rng: random.Random) -> Memory:
    index = rng.randrange(len(MEMORIES))
    told, reply, questions, answer, value_of = MEMORIES[index]
    value = value_of(rng)
    question = rng.choice(questions)
    return Memory(
        rng.choice(told).format(value), reply.format(value), question, answer.format(value),
        f"memory/{index}/{question}/{value}",
    )  # fmt: skip
