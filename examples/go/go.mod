module weir.example/caller

go 1.19
