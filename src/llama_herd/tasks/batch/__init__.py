"""What happens to a row, of `herd batch` as over HTTP: it is read, run, and answered by a line.

See row_request.py, batch_run.py and answers.py.
"""
