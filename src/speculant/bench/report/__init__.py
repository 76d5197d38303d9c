"""Reports: tables, pages and charts of what was measured."""
