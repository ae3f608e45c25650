"""What `tidelog serve --dev` shows at `/`: each surface to try, with the code that does it.

It is a program like any user's: a page with `tidelog.js`, and beside it a stand-in for a language
model and two daemons that use the public clients. It is served in development only.
"""
