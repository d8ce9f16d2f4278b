"""JupyterLab and the reader's copy of the book; the doctor that checks the machine for it."""

from dpbook.app.lab.doctor import diagnose
