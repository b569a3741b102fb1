"""What a rank does: the process, its set-up, and the steps of an encoder and a backbone rank."""
