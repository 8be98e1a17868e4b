//go:build cgo && linux && zklock_static

package zklock

// The line is not in link_shared.go with a condition, because the cache of go would then not notice a different tag.

// #cgo pkg-config: zklock-static
import "C"
