"""The three remedies, tune, scale and precision, as pure functions over typed samples.

What they need comes in one `fleet.FleetView`, what they want leaves in one `outlook.Outlook`. Nothing here scrapes,
applies, writes a status, or knows what time it is.
"""
