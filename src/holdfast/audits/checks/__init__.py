"""The checks of an audit: each takes a subject and returns findings. One file or package per check."""
