"""`gesso trace`: record a run and write it as an HTML page, an animated SVG or a GIF."""
