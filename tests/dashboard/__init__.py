"""Guards the page: its model, who may read it, and what a browser shows. opened.py serves it."""
