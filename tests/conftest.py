from hypothesis import settings

# A busy machine is no failure of a property.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
