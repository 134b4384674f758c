"""The tool ``report``: one HTML page about the tables.

lake.py     the tool ``report``: reads the lake's tables
page.py     the report's page: one HTML file that needs nothing else, neither network nor scripts; its style is page.css
plots.py    plots as SVG that stands in the page itself: its colours are the page's, its text is text
"""
