"""What people see of a running demo. ``scrape`` and ``spark_events`` read the numbers, ``state`` keeps them.

scrape.py         asks HTTP ports what the demo shows: counts, and the gateway's worker
spark_events.py   turns the Spark job's progress lines into the numbers the demo shows and waits for
state.py          what the demo knows of itself at a moment; the views draw it, the stages write it
view.py           what people see while the demo runs: a table that is redrawn on a terminal
watchdog.py       names the part of the demo that stands still, from the counts of every part
"""
