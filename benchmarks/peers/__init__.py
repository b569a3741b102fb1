"""Other ways to move an item between two Python processes, one a file, behind one face."""
