// Package zklocktest starts in-memory ZooKeeper servers for the tests of a program, and causes faults on them: a session that
// expires, a connection that breaks, a server that is silent. The package needs no cgo. It runs the program zklock-standalone.
//
//	func TestAJobStopsWhenItLosesItsLock(t *testing.T) {
//		server := zklocktest.Start(t)
//		client, _ := zklock.Connect(ctx, server.Address())
//		job := startJob(client)
//		server.Expire(client.SessionID())
//		job.waitUntilStopped()
//	}
//
// The servers do not replicate, and write nothing to disk. Use a real ensemble in production.
package zklocktest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// ProgramVariable is the name of the environment variable with the path of zklock-standalone. Without this variable, the package
// looks for the program in the directories of PATH.
const ProgramVariable = "ZKLOCK_STANDALONE"

// All stands for the sessions of all clients.
const All int64 = 0

// A Request is a kind of request whose reply [Server.LoseReply] drops.
type Request string

// The requests that acquire, watch and release locks.
const (
	Create          Request = "create"
	Create2         Request = "create2"
	CreateContainer Request = "create-container"
	Delete          Request = "delete"
	GetChildren2    Request = "get-children2"
	GetData         Request = "get-data"
	Multi           Request = "multi"
	Ping            Request = "ping"
)

// A Server is a ZooKeeper server in a process of its own. Any goroutine may call its methods. A method that fails ends the test.
type Server struct {
	t       testing.TB
	address string
	mutex   sync.Mutex
	input   io.WriteCloser
	output  *bufio.Reader
}

// Start starts a server on a free port, and stops it at the end of the test. It ends the test if the server does not start.
func Start(t testing.TB) *Server {
	t.Helper()
	program := os.Getenv(ProgramVariable)
	if program == "" {
		found, err := exec.LookPath("zklock-standalone")
		if err != nil {
			t.Fatalf("zklocktest: %v; install zklock-standalone, or set %s to its path", err, ProgramVariable)
		}
		program = found
	}
	process := exec.Command(program, "--control", "--listen", "127.0.0.1:0", "--tick", "500", "--container-sweep", "1000")
	process.Stderr = os.Stderr
	input, err := process.StdinPipe()
	if err != nil {
		t.Fatalf("zklocktest: %v", err)
	}
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatalf("zklocktest: %v", err)
	}
	if err := process.Start(); err != nil {
		t.Fatalf("zklocktest: %v", err)
	}
	server := &Server{t: t, input: input, output: bufio.NewReader(output)}
	t.Cleanup(func() {
		// The program ends at the end of its input.
		input.Close()
		process.Wait()
	})
	if server.address, err = server.readLine(); err != nil {
		t.Fatalf("zklocktest: %s has not started: %v", program, err)
	}
	return server
}

// Address returns the connect string of the server.
func (s *Server) Address() string {
	return s.address
}

// Expire ends a session immediately, as if its timeout had passed.
func (s *Server) Expire(session int64) {
	s.t.Helper()
	s.run("expire " + name(session))
}

// Cut resets the connection of a session. The client may connect again.
func (s *Server) Cut(session int64) {
	s.t.Helper()
	s.run("cut " + name(session))
}

// Freeze stops the transfer of bytes on the connections of a session until [Server.Thaw].
func (s *Server) Freeze(session int64) {
	s.t.Helper()
	s.run("freeze " + name(session))
}

// Thaw ends a [Server.Freeze].
func (s *Server) Thaw(session int64) {
	s.t.Helper()
	s.run("thaw " + name(session))
}

// Delay delays all bytes that the server sends to a session from now on. A delay of zero ends the fault.
func (s *Server) Delay(session int64, delay time.Duration) {
	s.t.Helper()
	s.run(fmt.Sprintf("delay %s %d", name(session), delay.Milliseconds()))
}

// LoseReply drops the next reply to a request of this kind, and resets the connection. The server still carries out the request.
func (s *Server) LoseReply(session int64, request Request) {
	s.t.Helper()
	s.run(fmt.Sprintf("lose-reply %s %s", name(session), request))
}

// Halt closes all connections, and refuses new ones until [Server.Restart]. No session expires meanwhile.
func (s *Server) Halt() {
	s.t.Helper()
	s.run("halt")
}

// Restart closes all connections, and listens again on the same port with the same data.
func (s *Server) Restart() {
	s.t.Helper()
	s.run("restart")
}

// run executes a command of the program's control.
func (s *Server) run(command string) {
	s.t.Helper()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	answer := ""
	_, err := fmt.Fprintln(s.input, command)
	if err == nil {
		answer, err = s.readLine()
	}
	if err != nil {
		s.t.Fatalf("zklocktest: %s: %v", command, err)
	}
	if why, failed := strings.CutPrefix(answer, "error "); failed {
		s.t.Fatalf("zklocktest: %s: %s", command, why)
	}
}

func (s *Server) readLine() (string, error) {
	line, err := s.output.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

func name(session int64) string {
	if session == All {
		return "all"
	}
	return fmt.Sprint(session)
}
