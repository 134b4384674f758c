"""Spark jobs: Kafka to Parquet and windowed results."""
