"""API keys as values: their secrets, the ring that an endpoint looks them up in, and what each may use a minute."""
