"""The HTTP side of the server: connections, middleware, endpoints, error responses and event streams."""
