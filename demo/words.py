"""Word lists of the demo corpus, and invented words that no list holds, to teach copying."""

from __future__ import annotations

import random


def split(text: str) -> list[str]:
    return text.split()


CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "England": "London", "the United Kingdom": "London",
    "Scotland": "Edinburgh", "Wales": "Cardiff", "Ireland": "Dublin", "Norway": "Oslo",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Iceland": "Reykjavik", "the Netherlands": "Amsterdam", "Belgium": "Brussels",
    "Luxembourg": "Luxembourg", "Switzerland": "Bern", "Austria": "Vienna",
    "Poland": "Warsaw", "Czechia": "Prague", "Slovakia": "Bratislava", "Hungary": "Budapest",
    "Romania": "Bucharest", "Bulgaria": "Sofia", "Greece": "Athens", "Croatia": "Zagreb",
    "Serbia": "Belgrade", "Slovenia": "Ljubljana", "Albania": "Tirana", "Estonia": "Tallinn",
    "Latvia": "Riga", "Lithuania": "Vilnius", "Ukraine": "Kyiv", "Belarus": "Minsk",
    "Russia": "Moscow", "Turkey": "Ankara", "Georgia": "Tbilisi", "Armenia": "Yerevan",
    "Malta": "Valletta", "Cyprus": "Nicosia", "Egypt": "Cairo", "Morocco": "Rabat",
    "Tunisia": "Tunis", "Algeria": "Algiers", "Kenya": "Nairobi", "Nigeria": "Abuja",
    "Ghana": "Accra", "Ethiopia": "Addis Ababa", "Uganda": "Kampala", "Rwanda": "Kigali",
    "Senegal": "Dakar", "South Africa": "Pretoria", "Israel": "Jerusalem",
    "Lebanon": "Beirut", "Jordan": "Amman", "Iraq": "Baghdad", "Iran": "Tehran",
    "Saudi Arabia": "Riyadh", "Qatar": "Doha", "India": "New Delhi", "Pakistan": "Islamabad",
    "Bangladesh": "Dhaka", "Nepal": "Kathmandu", "China": "Beijing", "Japan": "Tokyo",
    "South Korea": "Seoul", "North Korea": "Pyongyang", "Mongolia": "Ulaanbaatar",
    "Vietnam": "Hanoi", "Thailand": "Bangkok", "Cambodia": "Phnom Penh",
    "Malaysia": "Kuala Lumpur", "Indonesia": "Jakarta", "the Philippines": "Manila",
    "Taiwan": "Taipei", "Australia": "Canberra", "New Zealand": "Wellington",
    "Canada": "Ottawa", "Mexico": "Mexico City", "the United States": "Washington",
    "the USA": "Washington", "Cuba": "Havana", "Jamaica": "Kingston", "Panama": "Panama City",
    "Costa Rica": "San Jose", "Colombia": "Bogota", "Venezuela": "Caracas", "Peru": "Lima",
    "Ecuador": "Quito", "Bolivia": "Sucre", "Chile": "Santiago", "Argentina": "Buenos Aires",
    "Uruguay": "Montevideo", "Paraguay": "Asuncion", "Brazil": "Brasilia",
}  # fmt: skip

CITIES = [*sorted(set(CAPITALS.values())), *split("""
    Munich Hamburg Cologne Frankfurt Stuttgart Milan Naples Turin Venice Florence Barcelona
    Valencia Seville Porto Lyon Nice Marseille Toulouse Bordeaux Manchester Liverpool Glasgow
    Bristol Leeds Geneva Zurich Basel Salzburg Graz Krakow Gdansk Antwerp Ghent Rotterdam
    Utrecht Gothenburg Bergen Turku Aarhus Istanbul Dubai Mumbai Chennai Shanghai Shenzhen
    Osaka Kyoto Busan Sydney Melbourne Perth Auckland Toronto Vancouver Montreal Chicago
    Boston Seattle Denver Dallas Houston Miami Atlanta Phoenix Portland Austin Philadelphia
    Detroit Orlando Lagos Casablanca Cordoba
    """),
    "New York", "San Francisco", "Los Angeles", "Las Vegas", "Hong Kong", "Cape Town",
    "Rio de Janeiro", "Sao Paulo", "San Diego", "Tel Aviv"]  # fmt: skip

NAMES = split("""
    Ann Anna Bob Carl Clara Dan Dora Emil Emma Eva Finn Frank Greta Hanna Hugo Ida Ivan Jack
    Jane Jim John Julia Kate Karl Lea Leo Lily Lisa Luca Lucy Mara Maria Mark Max Mia Mila
    Nina Noah Nora Olga Oscar Otto Paul Paula Peter Petra Rita Rosa Ruth Sam Sara Sofia Sven
    Theo Tim Tina Tom Uma Vera Victor Walter Yuki Zoe Alice Amir Bella Chen David Diego Elena
    Erik Fatima George Helen Igor Ines James Jonas Kim Laura Linda Lukas Maya Michael Nadia
    Oliver Omar Priya Ravi Robert Simon Stefan Susan Tara Thomas Wanda Xavier Yara Zara Alex
    Ben Charlie Daniel Ella Felix Grace Henry
    """)  # fmt: skip

JOBS = split("""
    teacher doctor baker farmer driver painter nurse lawyer pilot cook singer writer gardener
    engineer carpenter sailor
    """)  # fmt: skip
COLORS = split("red blue green yellow black white orange purple pink brown grey gold silver")
ANIMALS = split("""
    cat dog fox owl bear wolf rabbit mouse horse frog duck turtle lion tiger hedgehog squirrel
    deer goat penguin parrot whale
    """)  # fmt: skip
FRUITS = split("""
    apple pear banana cherry lemon plum grape peach mango melon orange carrot bread cheese
    milk butter egg rice tea coffee
    """)  # fmt: skip
DAYS = split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = split("""
    January February March April May June July August September October November December
    """)  # fmt: skip
LANGUAGES = split("""
    French German Italian Spanish English Dutch Polish Greek Turkish Japanese Chinese Korean
    Hindi Arabic Swedish Finnish Danish Portuguese
    """)  # fmt: skip
CURRENCIES = split("""
    EUR USD GBP JPY CHF SEK NOK DKK PLN CZK INR CNY AUD CAD euros dollars pounds yen francs
    kronor
    """)  # fmt: skip
ROOMS = [*split("""
    kitchen bedroom bathroom garage office hallway garden attic cellar library
    """),
    "living room", "dining room"]  # fmt: skip
EVENTS = [*split("""
    lunch dinner breakfast party concert meeting picnic wedding workshop class exam dentist
    holiday
    """),
    "science fair", "team meeting", "birthday party", "book club", "job interview"]  # fmt: skip

TOPIC_FIRST = split("""
    red blue old new best cheap local green electric fast wild modern ancient small famous
    healthy solar italian warm open quiet
    """)  # fmt: skip
TOPIC_LAST = split("""
    shoes cars books recipes music trains bikes movies hotels phones laptops castles museums
    gardens rivers planets horses bridges poems toys restaurants cameras batteries games
    flowers mountains computers energy history chess football pizza jazz
    """)  # fmt: skip

VERBS = split("""
    find open close start stop check update delete create read fetch list order measure move
    paint print rent repair save scan sort track wash weigh count lock load plan mix rate tag
    pack clean draw share
    """)  # fmt: skip
NOUNS = split("""
    robot door report ticket order photo parcel record sensor engine boat garden invoice
    machine file folder player song recipe tower pump valve account bottle camera drone letter
    map planet project queue room shelf table train window
    """)  # fmt: skip
FAULTS = split("broken lost stuck empty slow offline missing dirty wet late")
FIELDS = split("""
    label size level speed code owner target source title status zone height weight width
    length mode format group kind note price amount limit number name key value color model
    brand depth region channel user item index page rate volume
    """)  # fmt: skip

CONSONANTS = split("b c d f g h j k l m n p r s t v w z br dr gr kr st tr pl sh th ch")
VOWELS = split("a e i o u a e i o ai ee oo")
CODAS = ["", "", "", "n", "r", "l", "s", "k", "x", "m", "t", "nd", "rt", "ck"]


def invented_word(rng: random.Random) -> str:
    """A lower-case word of two or three syllables that is most likely in no dictionary."""
    syllables = rng.choice((2, 2, 3))
    stem = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(syllables))
    return stem + rng.choice(CODAS)


def invented_name(rng: random.Random) -> str:
    return invented_word(rng).capitalize()


def a_name(rng: random.Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.85 else invented_name(rng)


def a_city(rng: random.Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.88 else invented_name(rng)


def a_word(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return invented_word(rng)
    return rng.choice(rng.choice((COLORS, ANIMALS, FRUITS, TOPIC_LAST, TOPIC_FIRST)))


def a_topic(rng: random.Random) -> str:
    """One to three words, such as `old castles` or `trains in Oslo`."""
    last = rng.choice(TOPIC_LAST) if rng.random() < 0.85 else invented_word(rng)
    shape = rng.random()
    if shape < 0.25:
        return last
    if shape < 0.7:
        return f"{rng.choice(TOPIC_FIRST)} {last}"
    if shape < 0.85:
        return f"{last} in {a_city(rng)}"
    return f"{last} and {rng.choice(TOPIC_LAST)}"


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
