"""Tasks: their declaration, their checks and expectations, the judging of an answer in the notebook, and its report."""
