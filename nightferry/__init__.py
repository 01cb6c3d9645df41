"""nightferry: two-stage backup with a gate on proof. The core knows no Prefect."""

__version__ = "0.1.0"
