"""From another bridge to this one: its settings translated, and its Kafka topic compared with ours."""
