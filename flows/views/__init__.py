"""Views of runs, plans and evaluations; templates render them as HTML, Markdown and terminal text."""
