"""`kadence keys`."""

from controlplane.keys_cli.app import keys_app

__all__ = ["keys_app"]
