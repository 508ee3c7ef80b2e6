"""An agent of LangChain with a tool: pip install 'langchain>=1' langchain-openai"""

import json
import os

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import OpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
API_KEY = os.environ.get("OPENAI_API_KEY", "unused")
client = OpenAI(base_url=BASE_URL, api_key=API_KEY)


@tool
def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return json.dumps({"temperature": 18, "condition": "sunny"})


model = ChatOpenAI(
    base_url=BASE_URL,
    api_key=API_KEY,
    model=client.models.list().data[0].id,  # the first one of the command line
    temperature=0,
)
agent = create_agent(model, [get_weather])
question = {"role": "user", "content": "What is the weather in Paris?"}
for message in agent.invoke({"messages": [question]})["messages"]:
    message.pretty_print()
