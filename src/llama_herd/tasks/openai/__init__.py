"""OpenAI's requests and responses as our jobs and results, for batch files and for servers."""
