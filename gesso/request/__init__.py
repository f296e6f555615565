"""What callers ask for, and the engine requests that it means: the road of Python, the command line and the server."""
