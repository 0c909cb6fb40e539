"""Whether the dashboard may listen where it is told to; known before Streamlit is loaded."""

from __future__ import annotations

from controlplane.settings import Settings, is_loopback_host


def exposure_problem(settings: Settings, host: str) -> str | None:
    """Why the dashboard must not listen on `host`, and the fix; None where it may."""
    if is_loopback_host(host) or settings.dashboard_password or settings.dashboard_proxy_header:
        return None
    return (
        f"dashboard_host: {host} is reached from other machines and there is no login: set KADENCE_DASHBOARD_PASSWORD, "
        f"or KADENCE_DASHBOARD_PROXY_HEADER with KADENCE_DASHBOARD_PROXIES, or leave dashboard_host at 127.0.0.1"
    )
