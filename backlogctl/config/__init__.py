"""backlog.yaml as frozen sections: unknown keys are fatal, secrets stay hidden."""

from __future__ import annotations

from backlogctl.config.consumers import Compose, Consumers, Expand, Kubernetes, Ramp
from backlogctl.config.delivery import LookBack, LookBackService, OutboxSection
from backlogctl.config.formats import Encoded, Part, SchemaFormat, SchemaRegistry
from backlogctl.config.hooks import Hook
from backlogctl.config.root import Config, load_config, mask_secrets
from backlogctl.config.sections import (
    Cluster,
    Guards,
    KafkaLedger,
    Source,
    SourceLimits,
    SparkSection,
    Staging,
    Watch,
)
from backlogctl.config.streams import (
    Consumed,
    Expr,
    Identity,
    MessageSection,
    OffPeak,
    Stream,
    StreamLimits,
    StreamSource,
    Value,
)
from backlogctl.config.template import render_template

__all__ = [
    "Cluster",
    "Compose",
    "Config",
    "Consumed",
    "Consumers",
    "Encoded",
    "Expand",
    "Expr",
    "Guards",
    "Hook",
    "Identity",
    "KafkaLedger",
    "Kubernetes",
    "LookBack",
    "LookBackService",
    "MessageSection",
    "OffPeak",
    "OutboxSection",
    "Part",
    "Ramp",
    "SchemaFormat",
    "SchemaRegistry",
    "Source",
    "SourceLimits",
    "SparkSection",
    "Staging",
    "Stream",
    "StreamLimits",
    "StreamSource",
    "Value",
    "Watch",
    "load_config",
    "mask_secrets",
    "render_template",
]
