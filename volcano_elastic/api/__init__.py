"""The custom resources as data: field names, defaults, validation, quantities. Pure."""
