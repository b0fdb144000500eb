"""`python -m scalable_agents.tables`, see tables.py."""

from scalable_agents.tables import tables

if __name__ == '__main__':
  tables.start('impala')
