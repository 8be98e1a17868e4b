//go:build !cgo || !linux

package zklock

// A build without cgo, or for another system than Linux, ends with the message "undefined", and this name.
var _ = zklock_needs_Linux_and_cgo__set_CGO_ENABLED_to_1_and_install_a_C_compiler
