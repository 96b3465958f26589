"""The main job from end to end, for a newcomer: `bashgym demo`. It only calls services; nothing here is a second way to train."""
