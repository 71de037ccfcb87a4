"""What a person may do to a period, each action audited."""
