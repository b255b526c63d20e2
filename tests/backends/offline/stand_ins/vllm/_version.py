__commit_id__ = "g752a3a504"
