"""OpenTelemetry, where the setting `otlp_endpoint` asks for it: who traces, and where spans and metrics go.

`pip install kadence[otel]` brings the exporter. Nothing of OpenTelemetry is imported while it is off.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from controlplane.settings import Settings, SettingsError

if TYPE_CHECKING:
    from workers.otel_requests import RequestTelemetry
    from workers.otel_worker import PhaseSpans

EXPORTER = "opentelemetry.exporter.otlp.proto.http"
EXPORT_EVERY_MS = 10_000


def check_otel(settings: Settings) -> None:
    """Raises SettingsError where spans are asked for and cannot be sent."""
    if settings.otlp_endpoint and not _is_there():
        raise SettingsError("otlp_endpoint needs OpenTelemetry's exporter: pip install 'kadence[otel]'")


def request_telemetry(settings: Settings) -> RequestTelemetry | None:
    """Of an endpoint's process; None while it is off."""
    if not settings.otlp_endpoint:
        return None
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    from workers.otel_requests import RequestTelemetry

    exporter = OTLPMetricExporter(endpoint=f"{settings.otlp_endpoint}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=EXPORT_EVERY_MS)
    meters = MeterProvider([reader], resource=_resource("endpoint"))
    tracers, label = _tracers(settings, "endpoint"), settings.model_label
    return RequestTelemetry(tracers, meters, settings.model, label, settings.host, settings.port)


def phase_spans(settings: Settings) -> PhaseSpans | None:
    """Of a worker's process; None while it is off."""
    if not settings.otlp_endpoint:
        return None
    from workers.otel_worker import PhaseSpans

    return PhaseSpans(_tracers(settings, "worker"))


def _tracers(settings: Settings, component: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=_resource(component))
    exporter = OTLPSpanExporter(endpoint=f"{settings.otlp_endpoint}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _resource(component: str) -> Any:
    """OTEL_RESOURCE_ATTRIBUTES of the environment is taken in by the SDK itself."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create(
        {"service.name": "kadence", "service.version": version("kadence"), "kadence.component": component}
    )


def _is_there() -> bool:
    try:
        return find_spec(EXPORTER) is not None
    except ModuleNotFoundError:
        return False
