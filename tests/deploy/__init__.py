"""The Helm chart and the plain manifests."""
