"""Tables, figures and the HTML report, from records alone; nothing here imports torch."""
