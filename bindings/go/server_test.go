//go:build cgo && linux

package zklock_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"zklock"
)

// testTimeout is a limit for operations that should take much less time.
const testTimeout = 60 * time.Second

// A server is a real ZooKeeper server in a process of its own. The process ends when its input ends.
type server struct {
	address string
	pid     int
	process *exec.Cmd
	end     func() error
}

// shared is the server for tests that do not disturb it.
var shared *server

func TestMain(m *testing.M) {
	started, err := startServer()
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests need a ZooKeeper server, which make setup installs:", err)
		os.Exit(1)
	}
	shared = started
	code := m.Run()
	shared.stop()
	os.Exit(code)
}

func startServer() (*server, error) {
	process := exec.Command("python3", "../../tests/python/server.py")
	process.Stderr = os.Stderr
	input, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	started := &server{process: process, end: input.Close}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		return nil, err
	}
	_, err = fmt.Sscanf(strings.TrimSpace(line), "%s %d", &started.address, &started.pid)
	return started, err
}

func (s *server) stop() {
	s.end()
	s.process.Wait()
}

// ownServer starts a server that the test may pause.
func ownServer(t *testing.T) *server {
	t.Helper()
	own, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.stop)
	return own
}

// pause makes the server silent. Its connections stay open.
func (s *server) pause(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(s.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(s.pid, syscall.SIGCONT) })
}

func (s *server) resume(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(s.pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// testContext returns a context that ends when a test hangs.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// connect makes a client, which the test closes at its end.
func connect(t *testing.T, address string, options ...zklock.Option) *zklock.Client {
	t.Helper()
	client, err := zklock.Connect(testContext(t), address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

var lastPath atomic.Int64

// freshPath returns a path that no other test uses.
func freshPath() string {
	return fmt.Sprintf("/go-%d/%d", os.Getpid(), lastPath.Add(1))
}

func newMutex(t *testing.T, client *zklock.Client, path string) *zklock.Lock {
	t.Helper()
	lock, err := client.Mutex(path)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func acquire(t *testing.T, lock *zklock.Lock) *zklock.Hold {
	t.Helper()
	hold, err := lock.Acquire(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return hold
}

func release(t *testing.T, hold *zklock.Hold) {
	t.Helper()
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
}

// waitUntil waits until a condition is true.
func waitUntil(t *testing.T, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the awaited condition did not become true")
		}
	}
}

func participants(t *testing.T, lock *zklock.Lock) []zklock.Participant {
	t.Helper()
	list, err := lock.Participants(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return list
}
