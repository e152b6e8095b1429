"""OpenAI's Responses API: its requests as our chats, and their outputs as its objects and events."""
