"""The authenticators that ``auth.chain`` names, one module each. Imported by the one that builds the chain, and then
only those that are in it: each pulls in its client library."""
