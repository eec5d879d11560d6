"""Everything that can be set, as frozen dataclasses.

They live apart from the modules they configure for one reason: nothing here imports torch, so `remem train --help`
shows a preset's own fields at once. Modules never see a settings object; `remem.build` passes flat keywords.
"""
