"""Budgets at work: what is spent (book), who may still ask (desk), and both beside the controller (office)."""
