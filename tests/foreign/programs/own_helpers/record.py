losses = []
