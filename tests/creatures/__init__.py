"""An axis of the tests' own, mounted as `tutti.creatures`: one member for every kind of field a spec may hold."""
