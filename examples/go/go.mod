module examples

go 1.21

require zklock v0.1.0

replace zklock => ../../bindings/go
