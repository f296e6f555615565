class Point:
    def __init__(self, x, y):
        self.x = x
        <FILL>

    def __repr__(self):
        return f"Point({self.x}, {self.y})"
