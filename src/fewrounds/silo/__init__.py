"""Training across organisations whose data may not move, over NVIDIA FLARE.

`messages` says what may travel; `site` answers at a site, `engine` asks from the coordinator; neither knows FLARE.
"""
