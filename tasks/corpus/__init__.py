"""Documents to pre-train on: from files, tables, WikiExtractor output, the Hub, or the demo's generated world."""
