"""The same for OpenAI's clients."""
