"""A synthetic device whose messages go the whole way, and are looked for at its end."""
