"""OpenAI's HTTP bodies to Requests, and Chunks to OpenAI's answers. Pure: no I/O."""
