"""What goes between ranks: schedules and rank programs carried out, on which device, how long, how much."""
