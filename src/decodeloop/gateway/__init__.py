"""The HTTP side: an OpenAI-compatible server in front of any engine. Knows neither torch nor the engine."""
