"""A plan from a budget: what each layer costs and brings, the best combinations, and what they take once compiled."""
