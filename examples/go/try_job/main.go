// Runs a job unless another process is running it: try_job SERVERS PATH
//
// The job ends when a line of input arrives.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"zklock"
)

func job() {
	fmt.Println("running")
	bufio.NewReader(os.Stdin).ReadString('\n')
}

func run(servers, path string) error {
	ctx := context.Background()
	client, err := zklock.Connect(ctx, servers)
	if err != nil {
		return err
	}
	defer client.Close()
	lock, err := client.Mutex(path)
	if err != nil {
		return err
	}
	hold, err := lock.TryAcquire(ctx) // one attempt, which does not wait
	if errors.Is(err, zklock.ErrLocked) {
		fmt.Println("skipped: another process runs it")
		return nil
	}
	if err != nil {
		return err
	}
	job()
	if err := hold.Release(); err != nil { // ErrLost if the lock was lost during the job
		return err
	}
	fmt.Println("done")
	return nil
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("try_job: ")
	if len(os.Args) != 3 {
		log.Fatal("usage: try_job SERVERS PATH")
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}
