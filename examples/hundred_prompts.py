"""Sends a hundred prompts at once. The server computes them together with continuous batching."""

import asyncio
import os

from openai import AsyncOpenAI

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")


async def main() -> None:
    api_key = os.environ.get("OPENAI_API_KEY", "unused")
    async with AsyncOpenAI(base_url=BASE_URL, api_key=api_key) as client:

        async def add(first: int, second: int) -> bool:
            """Requests a sum. Returns whether the answer contains it."""
            answer = await client.chat.completions.create(
                model="demo_model",
                messages=[{"role": "user", "content": f"What is {first} + {second}?"}],
                max_tokens=30,
                temperature=0,
            )
            return str(first + second) in (answer.choices[0].message.content or "")

        outcomes = await asyncio.gather(*(add(a, b) for a in range(10) for b in range(10)))
    print(f"{len(outcomes)} answers, {sum(outcomes)} of them right")


asyncio.run(main())
