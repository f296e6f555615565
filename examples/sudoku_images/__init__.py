"""A vision tower for gesso-sudoku: it reads a picture of a puzzle as the text model reads the puzzle's digits."""
