package zklocktest_test

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"zklock/zklocktest"
)

func ask(address string) (string, error) {
	connection, err := net.DialTimeout("tcp", address, time.Minute)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if _, err := fmt.Fprint(connection, "ruok"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(connection)
	return string(answer), err
}

func TestAServerServesAndCausesFaults(t *testing.T) {
	server := zklocktest.Start(t)
	if answer, err := ask(server.Address()); answer != "imok" {
		t.Fatalf("%q, %v", answer, err)
	}
	for _, fault := range []func(int64){server.Expire, server.Cut, server.Freeze, server.Thaw} {
		fault(zklocktest.All)
	}
	server.Delay(zklocktest.All, 0)
	server.LoseReply(zklocktest.All, zklocktest.Create2)
	server.Halt()
	if _, err := ask(server.Address()); err == nil {
		t.Fatal("a halted server has answered")
	}
	server.Restart()
	if answer, err := ask(server.Address()); answer != "imok" {
		t.Fatalf("%q, %v", answer, err)
	}
}

// A recorder stands for a test that fails.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, arguments ...any) {
	r.failed = fmt.Sprintf(format, arguments...)
	runtime.Goexit()
}

func failure(t *testing.T, call func(testing.TB)) string {
	t.Helper()
	failing := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		call(failing)
	}()
	<-done
	return failing.failed
}

func TestAFaultThatFailsEndsTheTest(t *testing.T) {
	said := failure(t, func(tb testing.TB) { zklocktest.Start(tb).Expire(7) })
	if !strings.HasPrefix(said, "zklocktest: expire 7: ") {
		t.Fatal(said)
	}
	t.Setenv(zklocktest.ProgramVariable, "/no/such/program")
	if said := failure(t, func(tb testing.TB) { zklocktest.Start(tb) }); !strings.Contains(said, "/no/such/program") {
		t.Fatal(said)
	}
	t.Setenv(zklocktest.ProgramVariable, "")
	t.Setenv("PATH", "/")
	if said := failure(t, func(tb testing.TB) { zklocktest.Start(tb) }); !strings.Contains(said, "set ZKLOCK_STANDALONE") {
		t.Fatal(said)
	}
}
