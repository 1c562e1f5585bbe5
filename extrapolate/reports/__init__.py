"""Results told: conclusions and figures, the terminal, an HTML page, LaTeX."""
