"""Messages of Kafka's protocol that kafka-python 3.0 lacks, in the form in which it reads its own."""
