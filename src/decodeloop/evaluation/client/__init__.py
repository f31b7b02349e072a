"""A load generator for any endpoint that speaks OpenAI's API: cheap enough to share two cores with what it measures."""
