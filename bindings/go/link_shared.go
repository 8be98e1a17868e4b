//go:build cgo && linux && !zklock_static

package zklock

// #cgo pkg-config: zklock
import "C"
