"""The course in a real JupyterLab, driven with mouse and keyboard in a real Chromium.

Screenshots of what was seen are left in screenshots/, the widgets in both themes and at two
widths.  Where there is no browser these tests are skipped; BROWSER_TESTS=required fails instead.
"""
