"""The built-in interceptors, a module for each. ``bridge.intercept.loading`` lists their names; none is imported
before a route uses it."""
