"""The paper's figures and tables, run again."""
