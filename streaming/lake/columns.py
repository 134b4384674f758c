"""A table's columns from a line of text."""

from pyspark.sql.types import ArrayType, DataType, StructType


def columns(told: str, **kinds: DataType) -> StructType:
    """The columns that ``"device string required, seq long"`` tells: names, and kinds as Spark calls them, or those of
    ``kinds``. A ``required`` column is never null."""
    made = StructType()
    for name, kind, *required in map(str.split, filter(None, told.split(","))):
        made.add(name, kinds.get(kind, kind), nullable=not required)
    return made


HEADERS = ArrayType(columns("key string, value binary"))
"""A Kafka record's."""
