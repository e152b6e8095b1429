"""OpenAI's requests and answers as our jobs and results, for files of batches and for servers."""
