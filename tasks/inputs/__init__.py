"""The world outside becomes documents: text files, tables, WikiExtractor output, the Hub, the generated world."""
