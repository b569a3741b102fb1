"""`flowtrain profile`: measures how long the layers of a model take on this machine."""
