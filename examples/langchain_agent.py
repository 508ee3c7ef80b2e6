"""An agent of LangChain with a tool: pip install langchain langchain-openai"""

import json
import os

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return json.dumps({"temperature": 18, "condition": "sunny"})


model = ChatOpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "unused"),
    model="demo_model",
    temperature=0,
)
agent = create_agent(model, [get_weather])
question = {"role": "user", "content": "What is the weather in Paris?"}
for message in agent.invoke({"messages": [question]})["messages"]:
    message.pretty_print()
