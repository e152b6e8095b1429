"""The gateway to the queue: OpenAI's HTTP API and our own, with no model and no state to lose."""
