"""Reports of results: pages that open offline, figures for print, and tables for the terminal."""
