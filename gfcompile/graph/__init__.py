"""What several rooms ask about a step's fx graph, how its nodes are made, and its text form."""
