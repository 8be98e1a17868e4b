//go:build cgo && linux

package zklock

/*
#include <zklock.h>
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"
)

// ClientState is the state of a client's session.
type ClientState int

// The states of a session.
const (
	ClientConnecting ClientState = C.ZKL_STATE_CONNECTING // the client has not had a session yet
	ClientConnected  ClientState = C.ZKL_STATE_CONNECTED  // the client has a session and a connection
	ClientSuspended  ClientState = C.ZKL_STATE_SUSPENDED  // the connection is lost, and the session may be alive
	ClientLost       ClientState = C.ZKL_STATE_LOST       // the session has ended, and the client has no new one yet
	ClientClosed     ClientState = C.ZKL_STATE_CLOSED     // the client is closed
)

func (s ClientState) String() string {
	names := map[ClientState]string{
		ClientConnecting: "connecting", ClientConnected: "connected", ClientSuspended: "suspended", ClientLost: "lost",
		ClientClosed: "closed",
	}
	return nameOf(names, s)
}

// LockState is the state of a hold.
type LockState int

// The states of a hold. A hold is safe in the states LockHeld and LockSuspended.
const (
	LockFree      LockState = C.ZKL_LOCK_FREE      // there is no hold
	LockHeld      LockState = C.ZKL_LOCK_HELD      // the hold is safe
	LockSuspended LockState = C.ZKL_LOCK_SUSPENDED // the hold is safe, but the client cannot confirm the hold at this moment
	LockUncertain LockState = C.ZKL_LOCK_UNCERTAIN // the session lease has ended, and the hold may be lost
	LockLost      LockState = C.ZKL_LOCK_LOST      // the hold is lost, and cannot become safe again
)

func (s LockState) String() string {
	names := map[LockState]string{
		LockFree: "free", LockHeld: "held", LockSuspended: "suspended", LockUncertain: "uncertain", LockLost: "lost",
	}
	return nameOf(names, s)
}

func nameOf[S ~int](names map[S]string, state S) string {
	if name, ok := names[state]; ok {
		return name
	}
	return fmt.Sprintf("state %d", int(state))
}

// lockState converts the result of the library. A closed lock, and a lock of a closed client, have no hold.
func lockState(state C.int32_t) LockState {
	if state < C.ZKL_LOCK_FREE {
		return LockFree
	}
	return LockState(state)
}

// Event is a change of a session, or of a hold.
type Event struct {
	// IsLock is true if a hold has changed, and false if the session has changed.
	IsLock bool
	// Client and PreviousClient are the states of the session before and after the change, if IsLock is false.
	Client, PreviousClient ClientState
	// Lock and PreviousLock are the states of the hold before and after the change, if IsLock is true.
	Lock, PreviousLock LockState
	// Path is the path of the lock or of the semaphore.
	Path string
	// Token and FencingPass identify the hold.
	Token, FencingPass int64
}

func eventOf(event *C.zkl_event) Event {
	result := Event{Token: int64(event.token), FencingPass: int64(event.fencing_pass)}
	if event.path != nil {
		result.Path = C.GoString(event.path)
	}
	if event.kind == C.ZKL_EVENT_LOCK {
		result.IsLock = true
		result.Lock, result.PreviousLock = LockState(event.state), LockState(event.previous)
	} else {
		result.Client, result.PreviousClient = ClientState(event.state), ClientState(event.previous)
	}
	return result
}

// Participant is a node in the queue of a lock or a semaphore.
type Participant struct {
	// Holds is true if the participant holds the lock or a lease, and false if it waits.
	Holds bool
	// SessionID is the session that owns the node, or 0 if the node is not ephemeral.
	SessionID int64
	// Token is the zxid of the node. For a holder, it is the fencing token.
	Token int64
	// NodePath is the path of the node.
	NodePath string
	// Data is the data of the node. By default, the data is the address of the participant's host.
	Data []byte
}

func participantOf(each *C.zkl_participant) Participant {
	return Participant{
		Holds:     each.holds == 1,
		SessionID: int64(each.session_id),
		Token:     int64(each.czxid),
		NodePath:  C.GoString(each.node_path),
		Data:      C.GoBytes(unsafe.Pointer(each.data), C.int(each.data_len)),
	}
}

// WaitsFor says what a pending acquire waits for.
type WaitsFor int

// The reasons why an acquire waits.
const (
	WaitsForConnection WaitsFor = C.ZKL_WAITS_FOR_CONNECTION
	WaitsForServer     WaitsFor = C.ZKL_WAITS_FOR_SERVER
	WaitsForNode       WaitsFor = C.ZKL_WAITS_FOR_NODE
	WaitsForLeases     WaitsFor = C.ZKL_WAITS_FOR_LEASES
	WaitsForCount      WaitsFor = C.ZKL_WAITS_FOR_COUNT
	WaitsForOwnHold    WaitsFor = C.ZKL_WAITS_FOR_OWN_HOLD
)

// Wait describes a pending acquire of this program.
type Wait struct {
	// For is the reason for the wait.
	For WaitsFor
	// NodePath is the node of the acquire, or "" if it has none yet.
	NodePath string
	// Ahead is the node for which the acquire waits, or "" if it is not known.
	Ahead string
	// SessionID is the session that owns the node ahead, or 0 if it is not known.
	SessionID int64
	// Count is the number of nodes ahead or the number of missing leases. Count is 0 if the number is not
	// known.
	Count uint64
	// Waited is the time since the acquire began.
	Waited time.Duration
	// Left is the time until the deadline, or a negative duration if the acquire has no deadline.
	Left time.Duration
}

func waitOf(wait *C.zkl_wait) Wait {
	return Wait{
		For:       WaitsFor(wait.waits_for),
		NodePath:  C.GoString(wait.node_path),
		Ahead:     C.GoString(wait.ahead),
		SessionID: int64(wait.session_id),
		Count:     uint64(wait.count),
		Waited:    time.Duration(wait.waited_ms) * time.Millisecond,
		Left:      time.Duration(wait.left_ms) * time.Millisecond,
	}
}

// Version returns the version of the C library.
func Version() string {
	return C.GoString(C.zkl_version())
}
