"""How figures are shown: tables, pages, charts."""
