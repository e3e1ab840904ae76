"""What the notebooks use: ranks behind a cell, live pictures, labs and checked exercises."""
