"""`kadence policy`: files, a running endpoint, and the records of what was in force."""

from controlplane.policy_cli.app import policy_app

__all__ = ["policy_app"]
