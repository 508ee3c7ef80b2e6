"""Well-known functions under their many names, with the questions that ask for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from demo import words

Value = Callable[[random.Random], Any]


class Param(NamedTuple):
    """One parameter: the names it goes by, its JSON type and how to draw a value."""

    names: Sequence[str]
    type: str
    value: Value
    description: str


class Family(NamedTuple):
    """A purpose with the names its function goes by and the questions that ask for it.

    A form uses `{0}`, `{1}`, ... for the parameters' values; one that leaves out a parameter
    is an optional use of it.
    """

    names: Sequence[str]
    descriptions: Sequence[str]
    params: Sequence[Param]
    forms: Sequence[str]


def integer(low: int, high: int) -> Value:
    return lambda rng: rng.randint(low, high)


def amount(rng: random.Random) -> int | float:
    """Mostly small whole numbers, some large, negative-free, some with decimals."""
    if rng.random() < 0.12:
        return rng.randint(1, 99) + rng.choice((0.5, 0.25, 0.1, 0.75, 0.9))
    return rng.randrange(10 ** rng.choice((1, 1, 2, 2, 3, 4)))


def place(rng: random.Random) -> str:
    """A city, now and then with its country or state."""
    city = words.a_city(rng)
    if rng.random() > 0.08:
        return city
    return f"{city}, {rng.choice((*words.CAPITALS, 'CA', 'NY', 'MA', 'TX', 'UK'))}"


def choice(options: Sequence[str]) -> Value:
    return lambda rng: rng.choice(options)


def clock(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02d}:{rng.choice((0, 5, 10, 15, 20, 30, 45)):02d}"


def file_name(rng: random.Random) -> str:
    stem = words.invented_word(rng) if rng.random() < 0.5 else rng.choice(words.NOUNS)
    return f"{stem}.{rng.choice(('txt', 'csv', 'json', 'md', 'py', 'pdf'))}"


def code(rng: random.Random) -> str:
    return str(rng.randint(100, 99999)) if rng.random() < 0.5 else letter_code(rng)


def letter_code(rng: random.Random) -> str:
    return f"{rng.choice('ABCKPRTX')}{rng.randint(10, 9999)}"


CITY = Param(("city", "city", "location", "location", "place", "town", "city_name"), "string",
             place, "The name of the city")  # fmt: skip
FROM_CITY = Param(("origin", "from", "from_city", "departure", "start"), "string", words.a_city,
                  "Where the trip starts")  # fmt: skip
TO_CITY = Param(("destination", "to", "to_city", "arrival", "end"), "string", words.a_city,
                "Where the trip ends")  # fmt: skip
DAY = Param(("day", "date", "weekday", "when"), "string", choice(words.DAYS), "The day")
FIRST = Param(("a", "a", "x", "first", "num1", "left", "n1"), "number", amount, "The first number")
SECOND = Param(("b", "b", "y", "second", "num2", "right", "n2"), "number", amount,
               "The second number")  # fmt: skip
UNIT = Param(("unit", "units", "scale"), "string", choice(("celsius", "fahrenheit")), "The unit")
PERSON = Param(("to", "recipient", "name", "person", "contact", "user"), "string", words.a_name,
               "Who gets it")  # fmt: skip
TOPIC = Param(("query", "query", "q", "text", "keywords", "term", "search_term"), "string",
              words.a_topic, "What to search for")  # fmt: skip


FAMILIES = (
    Family(("get_weather", "get_weather", "get_current_weather", "weather", "fetch_weather",
            "getWeather",
            "weather_lookup", "current_weather", "weather_report", "get_temperature"),
           ("Get the current weather in a city", "Returns the weather",
            "Look up the weather of a place",
            "Get current temperature for a given location.", "Get the weather for a location"),
           (CITY, UNIT),
           ("What is the weather in {0}?", "What is the weather in {0}?",
            "What's the weather in {0}?",
            "What is the weather like in {0}?", "What's the weather like in {0} today?",
            "How is the weather in {0}?", "Weather in {0}", "Tell me the weather in {0}.",
            "Is it raining in {0}?", "How warm is it in {0}?", "How cold is it in {0} right now?",
            "What is the temperature in {0}?", "Do I need an umbrella in {0}?",
            "Is it sunny in {0}?",
            "Check the weather in {0}.", "Get the weather for {0}", "Will it rain in {0}?",
            "I am in {0}. What is the weather?", "Is it going to rain in {0}?",
            "I'm traveling to {0}, what is the weather there?",
            "Could you check the weather in {0}?",
            "What is the current weather in {0}?",
            "What is the weather in {0} in {1}?", "How warm is it in {0} in {1}?")),
    Family(("get_forecast", "weather_forecast", "forecast", "get_weather_forecast"),
           ("Get the weather forecast for a city and a day", "Weather forecast",
            "Forecast of a day"),
           (CITY, DAY),
           ("What will the weather be in {0} on {1}?", "Will it rain in {0} on {1}?",
            "Weather forecast for {0} on {1}", "What is the forecast for {0} for {1}?",
            "How will the weather be on {1} in {0}?")),
    Family(("get_time", "get_current_time", "current_time", "time_in_city", "clock", "getTime",
            "local_time"),
           ("Get the current time in a city", "Returns the local time",
            "What time it is somewhere"),
           (CITY._replace(names=(*CITY.names, "timezone")),),
           ("What time is it in {0}?", "What time is it in {0}?", "What is the time in {0}?",
            "Tell me the time in {0}.", "Current time in {0}", "How late is it in {0}?",
            "What is the current time in {0}?", "Time in {0}?", "What's the local time in {0}?")),
    Family(("add", "add", "add_numbers", "sum", "plus", "addition", "calculate_sum"),
           ("Add two numbers", "Adds two numbers", "Returns the sum of two numbers",
            "Sum of a and b"),
           (FIRST, SECOND),
           ("What is {0} + {1}?", "What is {0} plus {1}?", "Add {0} and {1}.",
            "Calculate {0} + {1}.",
            "{0} + {1}", "How much is {0} + {1}?", "What is the sum of {0} and {1}?",
            "Sum {0} and {1}",
            "Please add {0} and {1}", "Compute {0} plus {1}.", "Use the tool to add {0} and {1}.")),
    Family(("multiply", "multiply", "mul", "product", "times", "multiply_numbers"),
           ("Multiply two numbers", "Returns the product of two numbers", "Multiplies a by b"),
           (FIRST, SECOND),
           ("What is {0} * {1}?", "What is {0} times {1}?", "Multiply {0} by {1}.",
            "Multiply {0} and {1}.",
            "Calculate {0} * {1}", "How much is {0} times {1}?",
            "What is the product of {0} and {1}?")),
    Family(("subtract", "minus", "difference", "subtract_numbers"),
           ("Subtract one number from another", "Returns a minus b", "Difference of two numbers"),
           (FIRST, SECOND),
           ("What is {0} - {1}?", "What is {0} minus {1}?", "Calculate {0} - {1}.",
            "{0} minus {1}")),
    Family(("divide", "div", "quotient", "division"),
           ("Divide two numbers", "Returns a divided by b", "Quotient of two numbers"),
           (FIRST, SECOND),
           ("What is {0} / {1}?", "What is {0} divided by {1}?", "Divide {0} by {1}.")),
    Family(("search", "search", "web_search", "search_web", "google", "internet_search", "lookup"),
           ("Search the web", "Searches the internet for a query", "Find pages about a topic"),
           (TOPIC,),
           ("Search for {0}.", "Search the web for {0}.", "Search for {0}",
            "Find information about {0}.",
            "Look up {0}.", "Google {0}.", "Please search for {0}", "Can you look up {0}?",
            "Search {0} on the internet.", "What can you find about {0}?")),
    Family(("send_email", "send_email", "email", "write_email", "send_mail"),
           ("Send an email", "Sends an email to a person", "Write a mail with a subject"),
           (PERSON, Param(("subject", "subject", "title", "topic"), "string", words.a_topic,
                          "The subject")),
           ("Send an email to {0} with the subject {1}.", "Email {0} about {1}.",
            "Write an email to {0} with subject {1}", "Send {0} an email about {1}.",
            "Mail {0} with the title {1}.", 'Send an email to {0} with the subject "{1}".')),
    Family(("send_message", "message", "send_sms", "text_message", "notify"),
           ("Send a message to somebody", "Sends a text message", "Notify a person"),
           (PERSON, Param(("text", "message", "body", "content"), "string", words.a_topic,
                          "The text")),
           ("Send {0} the message {1}.", 'Send the message "{1}" to {0}.', 'Tell {0}: "{1}"',
            "Text {0}: {1}", "Message {0} about {1}.", "Send a message to {0}: {1}")),
    Family(("convert_currency", "currency_converter", "exchange", "convert_money"),
           ("Convert an amount of money", "Converts between currencies", "Currency conversion"),
           (Param(("amount", "value", "sum"), "number", amount, "How much"),
            Param(("from", "from_currency", "source", "base"), "string",
                  choice(words.CURRENCIES), "From"),
            Param(("to", "to_currency", "target", "currency"), "string",
                  choice(words.CURRENCIES), "To")),
           ("Convert {0} {1} to {2}.", "How much is {0} {1} in {2}?", "What are {0} {1} in {2}?",
            "Change {0} {1} into {2}.", "{0} {1} to {2}")),
    Family(("get_stock_price", "stock_price", "get_quote", "stock"),
           ("Get the price of a stock", "Returns the current stock price", "Stock quote"),
           (Param(("symbol", "ticker", "company", "stock"), "string",
                  lambda rng: words.invented_name(rng) if rng.random() < 0.5 else
                  "".join(rng.choice("ABCDEFGIKLMNOPQRST") for _ in range(rng.randint(3, 4))),
                  "The symbol"),),
           ("What is the stock price of {0}?", "Price of {0}?", "How much is a share of {0}?",
            "Get the stock price of {0}.", "What is {0} trading at?")),
    Family(("set_alarm", "alarm", "create_alarm"),
           ("Set an alarm", "Sets an alarm clock"),
           (Param(("time", "at", "when"), "string", clock, "The time"),),
           ("Set an alarm for {0}.", "Wake me up at {0}.", "Alarm at {0}",
            "Set the alarm to {0}.")),
    Family(("set_timer", "timer", "start_timer"),
           ("Start a timer", "Sets a timer in minutes"),
           (Param(("minutes", "duration", "length"), "integer", integer(1, 120), "The minutes"),),
           ("Set a timer for {0} minutes.", "Start a {0} minute timer.", "Timer: {0} minutes",
            "Remind me in {0} minutes.")),
    Family(("book_flight", "find_flight", "search_flights", "flight"),
           ("Book a flight", "Finds flights between two cities", "Search for flights"),
           (FROM_CITY, TO_CITY, DAY),
           ("Book a flight from {0} to {1}.", "Find a flight from {0} to {1}.",
            "I want to fly from {0} to {1}.",
            "Book a flight from {0} to {1} on {2}.", "Are there flights from {0} to {1} on {2}?",
            "Fly me to {1} from {0}.")),
    Family(("get_distance", "distance", "route", "directions"),
           ("Get the distance between two cities", "Finds the way between two places"),
           (FROM_CITY, TO_CITY),
           ("How far is it from {0} to {1}?", "What is the distance between {0} and {1}?",
            "How do I get from {0} to {1}?", "Distance from {0} to {1}")),
    Family(("translate", "translate_text", "translator"),
           ("Translate a text", "Translates text into a language"),
           (Param(("text", "phrase", "sentence"), "string", words.a_topic, "The text"),
            Param(("language", "target_language", "to", "lang"), "string",
                  choice(words.LANGUAGES), "The language")),
           ("Translate {0} into {1}.", 'Translate "{0}" to {1}.', "How do you say {0} in {1}?",
            "What is {0} in {1}?")),
    Family(("play_music", "play_song", "music_player", "play"),
           ("Play music", "Plays songs of an artist"),
           (Param(("artist", "singer", "band", "name"), "string", words.a_name, "The artist"),),
           ("Play music by {0}.", "Play a song by {0}.", "I want to hear {0}.",
            "Put on some {0}.")),
    Family(("set_light", "switch_light", "control_light", "light"),
           ("Switch a light on or off", "Controls the lights"),
           (Param(("room", "place", "area"), "string", choice(words.ROOMS), "The room"),
            Param(("state", "status", "mode"), "string", choice(("on", "off")), "on or off")),
           ("Turn {1} the light in the {0}.", "Switch the {0} light {1}.",
            "Turn the light in the {0} {1}.",
            "Lights {1} in the {0}.")),
    Family(("set_temperature", "set_thermostat", "heating"),
           ("Set the temperature of a room", "Controls the heating"),
           (Param(("room", "place", "area"), "string", choice(words.ROOMS), "The room"),
            Param(("temperature", "degrees", "value"), "integer", integer(10, 30), "The degrees")),
           ("Set the temperature in the {0} to {1} degrees.", "Heat the {0} to {1} degrees.",
            "Make it {1} degrees in the {0}.", "Set the {0} to {1} degrees")),
    Family(("get_order_status", "order_status", "track_order", "get_order"),
           ("Get the status of an order", "Tracks an order"),
           (Param(("order_id", "id", "order", "number"), "string", code, "The order's id"),),
           ("Where is my order {0}?", "What is the status of order {0}?", "Track order {0}.",
            "Has order {0} been shipped?", "Check order {0}")),
    Family(("get_user", "find_user", "lookup_user", "get_contact"),
           ("Look up a person", "Returns the data of a user"),
           (Param(("name", "user", "username", "person"), "string", words.a_name, "The name"),),
           ("Find the user {0}.", "Look up the user {0}.", "What is the phone number of {0}?",
            "Get the contact of {0}.", "What is {0}'s email address?")),
    Family(("read_file", "open_file", "load_file", "cat"),
           ("Read a file", "Returns the content of a file"),
           (Param(("path", "file", "filename", "name"), "string", file_name, "The file"),),
           ("Read the file {0}.", "Open {0}.", "What is in {0}?", "Show me the file {0}.")),
    Family(("create_event", "add_event", "schedule_meeting", "calendar"),
           ("Create a calendar event", "Adds an event to the calendar"),
           (Param(("title", "name", "event", "summary"), "string", choice(words.EVENTS),
                  "The event"), DAY),
           ("Add {0} to my calendar on {1}.", "Schedule the {0} for {1}.", "Plan {0} on {1}.",
            "Create an event {0} on {1}.")),
    Family(("roll_dice", "dice", "roll"),
           ("Roll dice", "Rolls a die with some sides"),
           (Param(("sides", "faces", "n"), "integer", integer(2, 100), "How many sides"),),
           ("Roll a die with {0} sides.", "Roll a {0} sided die.", "Throw a dice with {0} sides")),
    Family(("random_number", "get_random_number", "random_int"),
           ("Get a random number", "Random number between two limits"),
           (Param(("min", "low", "from", "start"), "integer", integer(0, 50), "The lowest"),
            Param(("max", "high", "to", "end"), "integer", integer(51, 1000), "The highest")),
           ("Give me a random number between {0} and {1}.", "Random number from {0} to {1}",
            "Pick a number between {0} and {1}.")),
    Family(("get_news", "news", "latest_news", "headlines"),
           ("Get the news about a topic", "Latest headlines"),
           (Param(("topic", "subject", "category", "query"), "string", words.a_topic,
                  "The topic"),),
           ("What is the news about {0}?", "Any news about {0}?", "Latest news on {0}",
            "Get me the headlines about {0}.")),
    Family(("get_population", "population", "count_people"),
           ("Get the population of a city", "How many people live in a place"),
           (CITY,),
           ("How many people live in {0}?", "What is the population of {0}?",
            "Population of {0}?")),
    Family(("book_hotel", "reserve_room", "find_hotel", "hotel"),
           ("Book a hotel room", "Reserves a room in a city for some nights"),
           (CITY, Param(("nights", "days", "duration"), "integer", integer(1, 14), "The nights")),
           ("Book a hotel in {0} for {1} nights.", "I need a room in {0} for {1} nights.",
            "Find a hotel in {0} for {1} nights.", "Reserve a room for {1} nights in {0}.")),
    Family(("create_ticket", "open_ticket", "report_problem", "new_issue"),
           ("Create a support ticket", "Reports a problem with a priority"),
           (Param(("title", "summary", "problem"), "string",
                  lambda rng: f"{rng.choice(words.NOUNS).capitalize()} {rng.choice(words.FAULTS)}",
                  "What is wrong"),
            Param(("priority", "severity", "level"), "string", choice(("low", "medium", "high")),
                  "How urgent it is")),
           ("Create a ticket with title {0} and priority {1}.", "Open a {1} priority ticket: {0}",
            "Report the problem {0} with priority {1}.", "New ticket: {0}, priority {1}")),
    Family(("get_date", "today", "current_date", "get_today"),
           ("Get today's date", "Returns the current date"), (),
           ("What is today's date?", "What day is it today?", "Which date is today?",
            "Today's date?")),
    Family(("get_joke", "joke", "random_joke", "tell_joke"),
           ("Get a random joke", "Returns a joke"), (),
           ("Tell me a joke.", "I want to hear a joke.", "Do you know a joke?", "Make me laugh.")),
    Family(("get_location", "where_am_i", "my_location"),
           ("Get the location of the user", "Where the user is"), (),
           ("Where am I?", "What is my location?", "Which city am I in?")),
)  # fmt: skip
