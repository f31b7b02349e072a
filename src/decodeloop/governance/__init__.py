"""Who may do what, at what price: decisions and records. Clock, storage, signing and policy language come from outside.

A request meets it three times: `identity` says whose it is, `capability` rules what it may exercise, `quota` reserves
what it may cost at most. At its end it is charged what it did cost (`price`), and leaves a row (`ledger`) and a line
(`audit`).
"""
