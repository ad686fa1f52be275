"""One description of tables and pages, rendered as HTML, Markdown, LaTeX, CSV and on a terminal."""
