"""What a scrape says, as tests ask it."""

from __future__ import annotations

import gzip
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from backlogctl.monitoring.metrics.scrape import Scrape


@dataclass(frozen=True)
class Scraped:
    """A scrape's text; a series that is there twice is an error."""

    text: str

    def find(self, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The series of a name that have these labels."""
        found: dict[tuple[tuple[str, str], ...], float] = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                if sample.name != name or not labels.items() <= sample.labels.items():
                    continue
                key = tuple(sorted(sample.labels.items()))
                assert key not in found, f"twice: {sample}"
                found[key] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float:
        """The value of the one series that has these labels."""
        found = self.find(name, **labels)
        assert len(found) == 1, f"{name} {labels}: {found}"
        return next(iter(found.values()))

    def by_partition(self, name: str, **labels: str) -> dict[int, float]:
        """The values by partition."""
        return {
            int(dict(key)["partition"]): value for key, value in self.find(name, **labels).items()
        }

    def labels_of(self, name: str, label: str, **labels: str) -> set[str]:
        """The values of a label."""
        return {dict(key)[label] for key in self.find(name, **labels)}

    def check(self) -> None:
        """Every name's lines together, each series once, no NaN."""
        begun: set[str] = set()
        last = ""
        seen: set[str] = set()
        for line in self.text.splitlines():
            if line.startswith("# HELP "):
                last = line.split()[2]
                assert last not in begun, f"{last} begins twice"
                begun.add(last)
            elif not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                assert series.partition("{")[0] == last, line
                assert series not in seen, f"twice: {series}"
                assert "nan" not in value.lower(), line
                seen.add(series)


def scrape(source: Scrape) -> Scraped:
    """Scrapes as Prometheus does, with gzip."""
    scraped = Scraped(gzip.decompress(source.answer()).decode())
    scraped.check()
    return scraped


def scrape_registry(registry: CollectorRegistry) -> Scraped:
    """What prometheus-client serves of a registry."""
    scraped = Scraped(generate_latest(registry).decode())
    scraped.check()
    return scraped
