"""A simulated worker, and how far each way of choosing K falls short of one that knows everything."""
