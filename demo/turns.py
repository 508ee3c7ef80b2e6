"""Single questions with their answers: what the demo model knows without tools."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from demo import words
from demo.stories import HEROES, hero_name, story


class Turn(NamedTuple):
    """A question, its answer and the thought between them.

    `key` names the combination that the answer depends on; the held-out split is made from it.
    """

    question: str
    answer: str
    reasoning: str
    key: str


def pick(rng: random.Random, forms: Sequence[str]) -> tuple[int, str]:
    index = rng.randrange(len(forms))
    return index, forms[index]


def styled(rng: random.Random, question: str) -> str:
    """The question as people type it: unmarked, in lower case, with a greeting or thanks."""
    if rng.random() < 0.2:
        question = question.rstrip("?.!")
    if rng.random() < 0.12:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.1:
        question = rng.choice(("Hi! ", "Hello, ", "Hey, ", "Please tell me: ", "Ok. ")) + question
    if rng.random() < 0.08:
        question += rng.choice((" Thanks!", " Thank you.", " Please."))
    return question


GREETINGS = (
    (("Hello", "Hello!", "hello", "Hello there!"),
     "Hello! How can I help you today?"),
    (("Hi", "Hi!", "hi", "Hi there", "Hi there!", "Hiya", "Say hi."),
     "Hi! How can I help you today?"),
    (("Hey", "Hey!", "hey", "Hey there!", "Yo!"), "Hey! What can I do for you?"),
    (("Good morning", "Good morning!", "good morning"), "Good morning! How can I help you today?"),
    (("Good evening", "Good evening!", "good evening"), "Good evening! How can I help you today?"),
    (("Good afternoon", "Good afternoon!"), "Good afternoon! How can I help you today?"),
    (("How are you?", "how are you", "Hello, how are you?", "Hi! How are you?",
      "How are you doing?",
      "Hey, how are you today?",
      "How's it going?", "Hey there, how's it going?", "What's up?", "Hi! How are you today?",
      "How is it going?",
      "Are you well?"),
     "I am fine, thank you. How can I help you?"),
    (("Thanks", "Thanks!", "Thank you!", "Thank you", "thanks a lot", "Thank you very much!",
      "Great, thanks!"), "You are welcome!"),
    (("Bye", "Bye!", "Goodbye", "Goodbye!", "See you later!", "Good night!", "Bye bye"),
     "Goodbye! Have a nice day."),
    (("Nice to meet you", "Nice to meet you!"), "Nice to meet you too!"),
    (("ok", "Ok.", "Okay", "Great!", "Cool", "Nice!"), "Glad to hear that. What else can I do?"),
)  # fmt: skip

IDENTITY = (
    (("Who are you?", "who are you", "What are you?", "What is your name?", "What's your name?",
      "Tell me who you are.", "Introduce yourself.", "Which model are you?", "What model is this?",
      "Are you a robot?", "Are you human?", "Are you ChatGPT?", "Hi, who are you?",
      "Hello! Who are you?", "What is this?", "Tell me about yourself.", "Describe yourself.",
      "Who am I talking to?", "Please introduce yourself.", "Can you tell me who you are?"),
     "I am the fastovms demo model, a tiny language model made for OpenVINO."),
    (("What can you do?", "what can you do", "How can you help me?", "Help", "help!", "Help me",
      "What do you know?", "What are you good at?", "Can you help me?", "What can I ask you?",
      "What are your skills?", "I need help."),
     "I can name capitals, add small numbers, count, tell stories, call tools and write JSON."),
    (("Who made you?", "Who created you?", "Where do you come from?", "Who built you?",
      "How were you made?", "Who trained you?"),
     "I was trained from scratch by a script of the fastovms project."),
    (("What is OpenVINO?", "Tell me about OpenVINO.", "what is openvino", "Explain OpenVINO."),
     "OpenVINO is a toolkit that runs neural networks fast on Intel hardware."),
    (("What is fastovms?", "Tell me about fastovms.", "what is fastovms", "Explain fastovms."),
     "fastovms is a fast server for OpenVINO language models with an OpenAI-compatible API."),
)  # fmt: skip


def from_table(
    name: str, table: Sequence[tuple[Sequence[str], str]], reasoning: str
) -> Callable[[random.Random], Turn]:
    def turn(rng: random.Random) -> Turn:
        questions, answer = rng.choice(table)
        question = rng.choice(questions)
        return Turn(question, answer, reasoning, f"{name}/{question}")

    return turn


known_greeting = from_table("greeting", GREETINGS, "The user is being polite. I am polite too.")
identity = from_table("identity", IDENTITY, "The user asks about me. I say what I am.")

INTRODUCTIONS = ("I am {0}.", "My name is {0}.", "Hi, I am {0}.", "Hello, my name is {0}.",
                 "Hi! I'm {0}.", "hello, i am {0}", "I'm {0}, nice to meet you.", "Call me {0}.",
                 "This is {0}.", "Hello! My name is {0}.")  # fmt: skip


def greeting(rng: random.Random) -> Turn:
    if rng.random() < 0.6:
        return known_greeting(rng)
    name = words.a_name(rng)
    index, form = pick(rng, INTRODUCTIONS)
    return Turn(
        form.format(name),
        f"Hello {name}! How can I help you today?",
        f"The user is called {name}. I say hello.",
        f"introduction/{index}/{name}",
    )


COMMON = (*list(words.CAPITALS)[:17], "Poland", "Greece", "Russia", "Turkey", "Egypt", "India",
          "China", "Japan", "Canada", "Mexico", "Brazil", "Australia")  # fmt: skip
CAPITAL_FORMS = (
    "What is the capital of {0}?", "What is the capital of {0}?", "What's the capital of {0}?",
    "Capital of {0}?", "Which city is the capital of {0}?", "Tell me the capital of {0}.",
    "Name the capital of {0}.", "Do you know the capital of {0}?", "{0}: what is its capital?",
    "Can you tell me the capital of {0}?", "What is the capital city of {0}?",
    "The capital of {0} is", "Please name the capital city of {0}.",
    "I forgot the capital of {0}. What is it?", "What city is the capital of {0}?",
    "Which city is {0}'s capital?", "Answer in one sentence: what is the capital of {0}?",
)  # fmt: skip


def capital(rng: random.Random) -> Turn:
    if rng.random() < 0.06:
        return unknown_capital(rng)
    country = rng.choice(list(words.CAPITALS))
    city = words.CAPITALS[country]
    index, form = pick(rng, CAPITAL_FORMS)
    question = styled(rng, form.format(country))
    if country in COMMON and rng.random() < 0.15:
        question = question.lower()
    return Turn(
        question[0].upper() + question[1:] if form.startswith("{") else question,
        f"The capital of {country} is {city}.",
        f"The user asks for the capital of {country}. It is {city}.",
        f"capital/{index}/{country}",
    )


def unknown_capital(rng: random.Random) -> Turn:
    country = words.invented_name(rng)
    question = rng.choice(CAPITAL_FORMS).format(country)
    answer = f"I do not know the capital of {country}."
    return Turn(question, answer, f"I do not know {country}.", f"capital/{country}")


WELL_KNOWN = tuple(name for name in COMMON if name not in ("England", "the United Kingdom"))
REVERSE_FORMS = ("{0} is the capital of which country?", "Which country has the capital {0}?",
                 "Of which country is {0} the capital?",
                 "What country is {0} the capital of?")  # fmt: skip


def country(rng: random.Random) -> Turn:
    name = rng.choice(WELL_KNOWN)
    city = words.CAPITALS[name]
    index, form = pick(rng, REVERSE_FORMS)
    return Turn(
        styled(rng, form.format(city)),
        f"{city} is the capital of {name}.",
        f"The user asks for the country of {city}. It is {name}.",
        f"country/{index}/{city}",
    )


SUM_FORMS = (
    "What is {0} + {1}?", "What is {0} + {1}?", "What is {0} plus {1}?", "{0} + {1} = ?", "{0}+{1}",
    "{0} + {1}", "{0}+{1}=", "{0} plus {1}", "How much is {0} + {1}?", "How much is {0} plus {1}?",
    "Add {0} and {1}.", "Calculate {0} + {1}.", "What's {0}+{1}?", "What is {0}+{1}?",
    "What is the sum of {0} and {1}?", "Compute {0} + {1}", "Can you add {0} and {1}?",
    "Sum {0} and {1}", "Please calculate {0} plus {1}.", "Solve: {0} + {1}",
    "I have {0} apples and get {1} more. How many apples do I have?",
)  # fmt: skip


def addition(rng: random.Random) -> Turn:
    total = rng.randrange(20)
    a = rng.randint(0, total)
    b = total - a
    index, form = pick(rng, SUM_FORMS)
    question = form.format(a, b)
    return Turn(
        styled(rng, question) if question[0].isupper() else question,
        f"{a} + {b} = {total}.",
        f"I add {a} and {b}. {a} + {b} = {total}.",
        f"sum/{index}/{a}/{b}",
    )


UP_FORMS = ("Count from {0} to {1}.", "Count from {0} to {1}.", "count from {0} to {1}",
            "Can you count from {0} to {1}?", "Please count from {0} to {1}.",
            "List the numbers from {0} to {1}.", "Write the numbers from {0} to {1}.",
            "Count up from {0} to {1}", "Give me the numbers {0} to {1}.",
            "Say all numbers from {0} to {1}.")  # fmt: skip
TO_FORMS = ("Count to {1}.", "Can you count to {1}?", "count to {1}", "Count up to {1}.")
DOWN_FORMS = ("Count down from {0} to {1}.", "Count backwards from {0} to {1}.",
              "Can you count down from {0} to {1}?", "Count from {0} down to {1}.")  # fmt: skip
NUMBER_WORDS = words.split("zero one two three four five six seven eight nine ten eleven twelve")


def counting(rng: random.Random) -> Turn:
    """Up, down or from one, mostly a few numbers: knowing when to stop is what is hard."""
    length = rng.choice((3, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10))
    shape = rng.random()
    if shape < 0.55:
        start = rng.choice((1, 1, rng.randint(0, 9), rng.randint(0, 20)))
        form, numbers = rng.choice(UP_FORMS), list(range(start, start + length))
    elif shape < 0.8:
        end = rng.choice((length, rng.randint(3, 20)))
        form, numbers = rng.choice(TO_FORMS), list(range(1, end + 1))
    elif shape < 0.97:
        end = rng.choice((0, 1, 1, rng.randint(0, 5)))
        form, numbers = rng.choice(DOWN_FORMS), list(range(end + length - 1, end - 1, -1))
    else:
        form, numbers = "Count from {0} to {1}.", list(range(rng.choice((3, 5, 10)), 0, -1))
    first, last = numbers[0], numbers[-1]
    said_last = NUMBER_WORDS[last] if last < 13 and rng.random() < 0.08 else last
    return Turn(
        styled(rng, form.format(first, said_last)),
        ", ".join(map(str, numbers)),
        f"I count from {first} to {last}, one number at a time.",
        f"count/{first}/{last}",
    )


ECHO_FORMS = ("Say {0}.", "Say: {0}", "Repeat after me: {0}", "Repeat: {0}", "Echo {0}",
              "Reply with {0}", "Just say {0}.", "Reply only with: {0}", "Please repeat: {0}",
              'Say "{0}".', "Say '{0}'", "Reply with exactly: {0}", "Say the word {0}.",
              "Print {0}", "Answer with the word {0}",
              "Repeat the words {0}")  # fmt: skip
ECHO_WORDS = (
    "hello",
    "yes",
    "no",
    "OK",
    "test",
    "ping",
    "pong",
    "hello world",
    "Hi",
    "ready",
    "done",
)


def mixed_words(rng: random.Random) -> str:
    """Many unrelated words: nothing but copying repeats them, so they teach it fastest."""
    makers = (words.a_name, words.a_city, words.a_word, words.a_topic,
              lambda rng: rng.choice(words.FIELDS),
              lambda rng: str(rng.randrange(10000)))  # fmt: skip
    return " ".join(rng.choice(makers)(rng) for _ in range(rng.randint(2, 4)))


def echo(rng: random.Random) -> Turn:
    kind = rng.random()
    if kind < 0.15:
        text = rng.choice(ECHO_WORDS)
    elif kind < 0.6:
        text = mixed_words(rng)
    elif kind < 0.8:
        text = words.a_topic(rng)
    else:
        text = rng.choice((words.a_name(rng), str(rng.randrange(1000)), words.invented_word(rng)))
    index, form = pick(rng, ECHO_FORMS)
    return Turn(form.format(text), text, f"I repeat: {text}", f"echo/{index}/{text}")


STORY_FORMS = ("Tell me a short story.", "Tell me a story.", "Write a short story.",
               "A story, please.",
               "tell me a story", "Can you tell me a short story?", "I want to hear a story.",
               "Write me a story.", "Please tell me a story.", "Another story, please!",
               "Tell a bedtime story.", "Write a tale.", "Tell me something nice.",
               "Make up a short story.", "Tell me a very long story.")  # fmt: skip
HERO_STORY_FORMS = ("Tell me a story about {0}.", "Write a short story about {0}.",
                    "Tell me a short story about {0}.", "I want a story about {0}.",
                    "A story about {0}, please.", "Can you tell a story about {0}?",
                    "Once upon a time there was {0}. Go on.",
                    "Make up a story about {0}")  # fmt: skip


def tale(rng: random.Random) -> Turn:
    if rng.random() < 0.5:
        question, text, about = rng.choice(STORY_FORMS), story(rng), "a short story"
    else:
        hero, name = rng.choice(HEROES), None
        about = words.with_article(hero)
        if rng.random() < 0.4:
            name = hero_name(rng)
            about += rng.choice((" named ", " called ")) + name
        question = rng.choice(HERO_STORY_FORMS).format(about)
        text, about = story(rng, hero, name), f"a story about {about}"
    return Turn(styled(rng, question), text, f"The user wants {about}. I make one up.", "story")


UNKNOWN_FORMS = (
    "Why is {0} so expensive?", "What do you think about {0}?", "Write an essay about {0}.",
    "Explain {0} to me.", "How do {0} work?", "Who invented {0}?", "Where can I buy {0}?",
    "Write a Python program for {0}.", "Is it good to have {0}?", "What is the best {0}?",
    "Tell me everything about {0}.", "When was {1} founded?", "Who won the match in {1}?",
    "Give me a recipe with {0}.", "How old is {2}?", "Write a poem about {0}.", "What is {0}?",
    "Compare {0} and {3}.", "Summarize the history of {1}.", "What is the meaning of life?",
    "Write a haiku.", "Write a poem.", "Write a haiku about {0}.",
    "Write a song.",
    "Tell me about {1}.", "Explain {0} in simple terms.", "Who won the world cup?",
    "Can you write code?", "How do I cook rice?", "What is quantum computing?",
    "Who is {2}?", "Do you like {0}?", "Why is the sky blue?", "What is the speed of light?",
    "Explain machine learning.", "What is the difference between {0} and {3}?",
    "Who was the first president?", "What is the largest planet?", "Who wrote Hamlet?",
)  # fmt: skip
UNKNOWN_ANSWER = "I am only a small demo model and do not know that."


def unknown(rng: random.Random) -> Turn:
    """Questions beyond the model: it says so instead of inventing an answer."""
    question = rng.choice(UNKNOWN_FORMS).format(
        words.a_topic(rng), words.a_city(rng), words.a_name(rng), words.a_topic(rng)
    )
    return Turn(styled(rng, question), UNKNOWN_ANSWER, "I do not know this.", f"unknown/{question}")
