"""One self-contained HTML page of the results of many analyses, with charts."""
