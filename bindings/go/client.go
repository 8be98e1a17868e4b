//go:build cgo && linux

package zklock

/*
#include <stdlib.h>
#include "callbacks.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/cgo"
	"sync"
	"time"
)

// Client has one ZooKeeper session, which any number of locks and goroutines share. If the session ends, all holds of the client
// are lost, and the client begins a new session.
type Client struct {
	client *C.zkl_client
	mutex  sync.Mutex
	// onClose frees the handles of the locks and semaphores that this client has made. It is nil after Close has begun.
	onClose map[*func()]struct{}
	// closed is a channel that Close closes when it ends. The result of Close is in closeErr.
	closed   chan struct{}
	closeErr error
}

// An Option is a setting of a client, for example [WithSessionTimeout].
type Option struct {
	apply func(config *C.zkl_config) error
}

// WithSessionTimeout sets the time after which the servers end a session if they receive nothing from its client. The default is
// 10 seconds.
func WithSessionTimeout(timeout time.Duration) Option {
	return Option{func(config *C.zkl_config) error {
		return call(func() C.zkl_status { return C.zkl_config_set_session_timeout_ms(config, milliseconds(timeout)) })
	}}
}

// WithConnectTimeout sets the longest time that [Connect] waits for a server. The default is 10 seconds. The deadline of the
// context also applies.
func WithConnectTimeout(timeout time.Duration) Option {
	return Option{func(config *C.zkl_config) error {
		return call(func() C.zkl_status { return C.zkl_config_set_connect_timeout_ms(config, milliseconds(timeout)) })
	}}
}

// WithLeaseMargin sets the lease margin. The session lease is shorter than the session timeout by at least the lease margin. The
// default is a third of the session timeout.
func WithLeaseMargin(margin time.Duration) Option {
	return Option{func(config *C.zkl_config) error {
		return call(func() C.zkl_status { return C.zkl_config_set_lease_margin_ms(config, milliseconds(margin)) })
	}}
}

// WithAuth adds credentials, for example WithAuth("digest", []byte("user:password")).
func WithAuth(scheme string, credentials []byte) Option {
	return Option{func(config *C.zkl_config) error {
		name, err := newText("scheme", scheme)
		if err != nil {
			return err
		}
		defer free(name)
		data := C.CBytes(credentials)
		defer C.free(data)
		return call(func() C.zkl_status { return C.zkl_config_add_auth(config, name, data, C.size_t(len(credentials))) })
	}}
}

// WithOption sets an option by its name, for example WithOption("tls.ca", "/etc/zookeeper/ca.pem").
func WithOption(name, value string) Option {
	return Option{func(config *C.zkl_config) error {
		option, err := newText("option", name)
		if err != nil {
			return err
		}
		defer free(option)
		setting, err := newText("value of "+name, value)
		if err != nil {
			return err
		}
		defer free(setting)
		return call(func() C.zkl_status { return C.zkl_config_set(config, option, setting) })
	}}
}

// WithOptionsFile reads options from a file.
func WithOptionsFile(file string) Option {
	return Option{func(config *C.zkl_config) error {
		name, err := newText("file", file)
		if err != nil {
			return err
		}
		defer free(name)
		return call(func() C.zkl_status { return C.zkl_config_load(config, name) })
	}}
}

// WithKazoo makes mutexes and read/write locks wait for kazoo's locks on the same path. The kazoo programs must also wait for
// zklock: construct their locks with extra_lock_patterns=["-lock-"] for a mutex, and with ["__READ__", "__WRIT__"] for a
// read/write lock. Otherwise both programs can hold the lock at the same time.
func WithKazoo() Option {
	return Option{func(config *C.zkl_config) error {
		return call(func() C.zkl_status { return C.zkl_config_set_wait_for_kazoo(config, 1) })
	}}
}

// WithEventHandler sets a function that the client calls for each change of its session and of its holds. The client makes one
// call at a time, in the order of the changes. The function runs on a separate goroutine, and may wait. Events that the function
// has not received yet stay in memory.
func WithEventHandler(handler func(Event)) Option {
	return Option{func(config *C.zkl_config) error {
		if handler == nil {
			return &Error{Status: ErrInvalid, Message: "the event handler is nil; expected a function"}
		}
		events := newCallQueue(0, handler)
		events.start(nil)
		handle := cgo.NewHandle(events)
		err := call(func() C.zkl_status { return C.zklock_go_listen_config(config, C.uintptr_t(handle)) })
		if err != nil {
			zklockDrop(C.uintptr_t(handle))
		}
		return err
	}}
}

// Connect makes a client, and waits until the client has a session. The list of servers has the form
// "host:2181,host:2181/chroot". If the context ends first, Connect fails, and the error says why no server has answered yet.
func Connect(ctx context.Context, servers string, options ...Option) (*Client, error) {
	if ctx.Err() != nil {
		return nil, contextEnded(ctx, servers)
	}
	if err := completions.start(); err != nil {
		return nil, err
	}
	config := C.zkl_config_new()
	defer C.zkl_config_free(config)
	for _, option := range options {
		if option.apply == nil {
			continue
		}
		if err := option.apply(config); err != nil {
			return nil, err
		}
	}
	address, err := newText("list of servers", servers)
	if err != nil {
		return nil, err
	}
	defer free(address)
	start := func(out **C.zkl_op) C.zkl_status { return C.zkl_client_start(address, config, out) }
	connecting, err := startOperation(ctx, servers, start)
	if err != nil {
		return nil, err
	}
	defer connecting.free()
	if err := connecting.waitOrCancel(ctx, 0); err != nil {
		var reason *Error
		if ctx.Err() != nil && errors.As(err, &reason) {
			message := fmt.Sprintf("%v: %s", context.Cause(ctx), reason.Message)
			return nil, endOf(ctx, &Error{Status: ErrCanceled, Message: message})
		}
		return nil, err
	}
	var client *C.zkl_client
	if err := call(func() C.zkl_status { return C.zkl_op_client(connecting.op, &client) }); err != nil {
		return nil, err
	}
	return &Client{client: client, onClose: map[*func()]struct{}{}, closed: make(chan struct{})}, nil
}

// Close ends the session. All holds of the client end, and all waits fail with ErrClosed. Close waits for at most two seconds for
// a server to confirm the end of the session. Each later call waits for the first call, and returns the same result.
func (c *Client) Close() error {
	if c == nil || c.closed == nil {
		return &Error{Status: ErrClosed, Message: "this Client was not made by Connect"}
	}
	c.mutex.Lock()
	onClose := c.onClose
	c.onClose = nil
	c.mutex.Unlock()
	if onClose == nil {
		<-c.closed
		return c.closeErr
	}
	start := func(out **C.zkl_op) C.zkl_status { return C.zkl_client_close_start(c.client, out) }
	c.closeErr = run(context.Background(), "closing", start, nil)
	for free := range onClose {
		(*free)()
	}
	C.zkl_client_free(c.client)
	close(c.closed)
	return c.closeErr
}

// freeOnClose frees a handle when the client closes. The returned function frees the handle earlier.
func (c *Client) freeOnClose(free func()) func() {
	c.mutex.Lock()
	isOpen := c.onClose != nil
	if isOpen {
		c.onClose[&free] = struct{}{}
	}
	c.mutex.Unlock()
	if !isOpen {
		free()
	}
	// Only the first call frees the handle, unless the client has freed it already.
	return func() {
		c.mutex.Lock()
		_, isKept := c.onClose[&free]
		delete(c.onClose, &free)
		c.mutex.Unlock()
		if isKept {
			free()
		}
	}
}

// handle returns the handle of the library. The handle is nil for a client that Connect did not make. The library
// refuses a nil handle.
func (c *Client) handle() *C.zkl_client {
	if c == nil {
		return nil
	}
	return c.client
}

// State returns the state of the session.
func (c *Client) State() ClientState {
	state := C.zkl_client_state(c.handle())
	if state < 0 {
		return ClientClosed
	}
	return ClientState(state)
}

// SessionID returns the id of the session, or 0 if the client has no session.
func (c *Client) SessionID() int64 {
	return int64(C.zkl_client_session_id(c.handle()))
}

// SetServers gives the client a new list of servers.
func (c *Client) SetServers(servers string) error {
	address, err := newText("list of servers", servers)
	if err != nil {
		return err
	}
	defer free(address)
	return call(func() C.zkl_status { return C.zkl_client_set_servers(c.handle(), address) })
}

// Revoke asks the owner of a node to release its lock. [Participant.NodePath] is the path of such a node.
func (c *Client) Revoke(ctx context.Context, nodePath string) error {
	node, err := newText("path", nodePath)
	if err != nil {
		return err
	}
	defer free(node)
	return run(ctx, nodePath, func(out **C.zkl_op) C.zkl_status { return C.zkl_revoke_start(c.handle(), node, out) }, nil)
}

// FenceCheck asks the servers whether the hold with a fencing token still exists.
func (c *Client) FenceCheck(ctx context.Context, path string, token int64) (bool, error) {
	name, err := newText("path", path)
	if err != nil {
		return false, err
	}
	defer free(name)
	value, err := runForValue(ctx, path, func(out **C.zkl_op) C.zkl_status {
		return C.zkl_fence_check_start(c.handle(), name, C.int64_t(token), out)
	})
	return value == 1, err
}

// SharedCount reads a shared count, as Curator's SharedCount stores it.
func (c *Client) SharedCount(ctx context.Context, path string) (int32, error) {
	name, err := newText("path", path)
	if err != nil {
		return 0, err
	}
	defer free(name)
	value, err := runForValue(ctx, path, func(out **C.zkl_op) C.zkl_status {
		return C.zkl_shared_count_get_start(c.handle(), name, out)
	})
	return int32(value), err
}

// SetSharedCount sets a shared count.
func (c *Client) SetSharedCount(ctx context.Context, path string, value int32) error {
	name, err := newText("path", path)
	if err != nil {
		return err
	}
	defer free(name)
	return run(ctx, path, func(out **C.zkl_op) C.zkl_status {
		return C.zkl_shared_count_set_start(c.handle(), name, C.int32_t(value), out)
	}, nil)
}

// Prometheus returns the metrics of the client in the text format of Prometheus. The labels have the form `app="billing"`, or are
// empty.
func (c *Client) Prometheus(labels string) (string, error) {
	text, err := newText("labels", labels)
	if err != nil {
		return "", err
	}
	defer free(text)
	return readText(func(buf *C.char, size C.size_t, needed *C.size_t) C.zkl_status {
		return C.zkl_client_prometheus(c.handle(), text, buf, size, needed)
	})
}

// runForValue runs an operation whose result is a number.
func runForValue(ctx context.Context, what string, start func(out **C.zkl_op) C.zkl_status) (int64, error) {
	var value C.int64_t
	err := run(ctx, what, start, func(op *C.zkl_op) error {
		return call(func() C.zkl_status { return C.zkl_op_value(op, &value) })
	})
	return int64(value), err
}

// runForParticipants runs an operation whose result is a list of participants.
func runForParticipants(ctx context.Context, what string, start func(out **C.zkl_op) C.zkl_status) ([]Participant, error) {
	return runForList(ctx, what, start, func(op *C.zkl_op, index C.size_t) (participant Participant, err error) {
		var each *C.zkl_participant
		if err = call(func() C.zkl_status { return C.zkl_op_participant(op, index, &each) }); err == nil {
			participant = participantOf(each)
		}
		return participant, err
	})
}

// runForList runs an operation whose result is a list. The function get returns one element of the list.
func runForList[T any](
	ctx context.Context, what string, start func(out **C.zkl_op) C.zkl_status, get func(op *C.zkl_op, index C.size_t) (T, error),
) ([]T, error) {
	var list []T
	err := run(ctx, what, start, func(op *C.zkl_op) error {
		var count C.int64_t
		if err := call(func() C.zkl_status { return C.zkl_op_value(op, &count) }); err != nil {
			return err
		}
		for index := C.size_t(0); index < C.size_t(count); index++ {
			each, err := get(op, index)
			if err != nil {
				return err
			}
			list = append(list, each)
		}
		return nil
	})
	return list, err
}

// milliseconds converts a duration, rounded up. A duration that is too long for the library becomes the longest possible one.
func milliseconds(duration time.Duration) C.int32_t {
	count := math.Ceil(float64(duration) / float64(time.Millisecond))
	return C.int32_t(math.Max(math.MinInt32, math.Min(math.MaxInt32, count)))
}

func (c *Client) String() string {
	return fmt.Sprintf("zklock client (%s)", c.State())
}
