"""Why a value has its address, and why an entry needs as many bytes as it does: read from the plan and its graph, as values that print."""

from __future__ import annotations

from ostinato.planner.explain.address import AddressAnswer, ExplainedAddress, explain_address
from ostinato.planner.explain.peak import PeakAnswer, PeakTenant, explain_peak

__all__ = ["AddressAnswer", "ExplainedAddress", "PeakAnswer", "PeakTenant", "explain_address", "explain_peak"]
