"""The course in a real JupyterLab, driven with mouse and keyboard in a real Chromium.

Screenshots of what was seen are left in screenshots/, the widgets in both themes and at two
widths.  They take ten minutes, so only BROWSER_TESTS=required runs them, as `make test-browser` sets it; it fails
where there is no browser.
"""
