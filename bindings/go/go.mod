module zklock

go 1.21
