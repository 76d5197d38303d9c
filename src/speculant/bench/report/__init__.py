"""Reports: tables, pages and charts of measurements."""
