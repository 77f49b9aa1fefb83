"""State of the server: the application state, and the registry of models and its reload."""
