"""A page that shows the server live: what it measures, its last quarter of an hour, and its own charts. No CDN, no build."""
