"""What a trainer gets: views of a group's credit, padded, checked and packed."""
